"""google-tunix's GRPO learner at the steps of a preset, for models of the Llama architecture."""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.work import questions
from rlvr_jax.errors import UserError
from rlvr_jax.models.config import config_from_hugging_face
from rlvr_jax.training import TrainConfig


def step(config: TrainConfig, steps: int, rows: int, to_the_limit: bool, turn: Callable[[], bool]) -> None:
    """Full fine-tune in float32 with optax's AdamW, with its own sampler, without KL, logs and checkpoints."""
    from flax import nnx
    from tunix.models.llama3 import model as llama
    from tunix.models.llama3.params import create_model_from_safe_tensors
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
    from tunix.rl.rollout.base_rollout import RolloutConfig

    asked = questions(config, steps)
    prompts, samples = config.prompts_per_step, config.samples_per_prompt
    if prompts * samples > rows and (rows % samples or prompts % (rows // samples)):
        raise UserError(f"peer_rows is {rows}, accepted is {samples} times a divisor of {prompts}")
    fields = json.loads((asked.folder / "config.json").read_text())
    if fields["model_type"] != "llama":
        raise UserError(f"model is {config.model!r}: tunix's side accepts a Llama")
    sizes = config_from_hugging_face(fields)
    # Its attention does not read the rotation's base from the config; other completions would have other lengths.
    llama.apply_rope = functools.partial(llama.apply_rope, rope_theta=sizes.rope_theta)
    # It puts a beginning in front of every prompt, and takes pads for no tokens: as ours reads prompts there is no
    # beginning, and the token that pads by default may stand in a chat.
    asked.tokenizer.bos_token = None
    asked.tokenizer.pad_token = asked.tokenizer.convert_ids_to_tokens(0)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    model = create_model_from_safe_tensors(
        str(asked.folder),
        llama.ModelConfig(
            num_layers=sizes.num_layers,
            vocab_size=sizes.vocab_size,
            embed_dim=sizes.hidden_size,
            hidden_dim=sizes.intermediate_size,
            num_heads=sizes.num_heads,
            head_dim=sizes.head_dim,
            num_kv_heads=sizes.num_kv_heads,
            rope_theta=sizes.rope_theta,
            norm_eps=sizes.rms_norm_eps,
            weight_tying=sizes.tie_word_embeddings,
        ),
        mesh,
        jnp.float32,
    )
    longest = max(len(tokens) for tokens in asked.tokens)
    micro_batch = min(rows // samples, prompts)
    cluster = RLCluster(
        actor=model,
        tokenizer=asked.tokenizer,
        cluster_config=ClusterConfig(
            role_to_mesh=dict.fromkeys((Role.ACTOR, Role.REFERENCE, Role.ROLLOUT), mesh),
            training_config=RLTrainingConfig(
                actor_optimizer=optax.chain(
                    optax.clip_by_global_norm(config.max_gradient_norm),
                    optax.adamw(config.learning_rate, config.beta1, config.beta2, weight_decay=config.weight_decay),
                ),
                eval_every_n_steps=steps + 1,
                max_steps=steps,
                mini_batch_size=prompts,
                train_micro_batch_size=micro_batch,
                rollout_micro_batch_size=prompts,
                compute_logps_micro_batch_size=prompts,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=asked.max_new_tokens,
                max_prompt_length=longest,
                kv_cache_size=longest + asked.max_new_tokens + 1,
                temperature=config.temperature,
                eos_tokens=[-1] if to_the_limit else asked.stop_tokens,
            ),
        ),
    )

    # It tells a completion without the stop token.
    end = asked.tokenizer.decode(asked.stop_tokens[-1:], skip_special_tokens=True)

    def reward(prompts: Any, completions: list[str], place: Any, **_: Any) -> list[float]:
        verdicts = asked.verify([asked.rows[int(i)] for i in place], [text + end for text in completions])
        return [float(verdict.correct) for verdict in verdicts]

    def take_turn() -> None:
        # It goes on while the device still works.
        jax.block_until_ready(nnx.state(cluster.actor_trainer.model))
        turn()

    def batches() -> Iterator[dict[str, Any]]:
        for start in range(0, len(asked.rows), prompts):
            take_turn()
            chosen = range(start, start + prompts)
            yield {"prompts": np.array([asked.texts[i] for i in chosen]), "place": np.array(chosen)}

    learner = GRPOLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=samples, num_iterations=1, beta=0.0),
        reward_fns=reward,
    )
    with mesh:
        learner.train(batches())
    take_turn()
