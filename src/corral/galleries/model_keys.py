"""The table of all keys of a model's configuration: type, default, meaning, and who uses them. Pure.

`docs/reference/model-keys.md` is made of it. `model_key_checks.py` tells what is wrong with a configuration by it.
"""

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.base.errors import InvalidInput


def _anything(config: Config, key: str, default: object) -> object:
    value = fields.value_at(config, key)
    return default if value is None else value


def _switch_or_text(config: Config, key: str, default: object) -> object:
    value = fields.value_at(config, key)
    return value if isinstance(value, bool) else fields.text(config, key, default)


def _mappings(config: Config, key: str, default: object) -> object:
    value = fields.value_at(config, key)
    if value is not None and not (isinstance(value, list) and all(isinstance(item, Mapping) for item in value)):
        raise InvalidInput(key, f"must be a list of mappings, got {fields.kind(value)}")
    return default if value is None else value


class ValueType(Enum):
    """What a key's value must be, and how that is checked."""

    def __init__(self, name: str, read: Callable[[Config, str, object], object]) -> None:
        self.shown = name
        self.read = read
        """Raises InvalidInput for another value."""

    TEXT = "text", fields.text
    WHOLE = "whole number", fields.whole
    NUMBER = "number", fields.number
    SWITCH = "true or false", fields.switch
    SWITCH_OR_TEXT = "text, or true or false", _switch_or_text
    TEXTS = "list of texts", fields.texts
    NUMBERS = "list of numbers", fields.numbers
    MAPPING = "mapping", fields.mapping
    MAPPINGS = "list of mappings", _mappings
    ANYTHING = "anything", _anything


class Use(StrEnum):
    """What Corral does with a key."""

    CORRAL = "read by Corral"
    LOAD = "passed on when the model is loaded"
    REQUEST = "applied to requests"
    NOTHING = "accepted, without effect"
    """LocalAI alone reads it; files that have it are good files."""


class ModelKey(NamedTuple):
    """One key of a model's configuration."""

    key: str
    """Dotted; `[]` stands for the items of a list."""
    type: ValueType
    use: Use
    meaning: str
    default: str = ""
    """In words; empty where nothing is assumed."""
    backends: str = ""
    """The backends that use it, if they are few."""


_T = ValueType
_C, _L, _R, _N = Use.CORRAL, Use.LOAD, Use.REQUEST, Use.NOTHING
_GPU_ENGINES: Final = "vllm, sglang"
_LLAMA: Final = "llama-cpp"
_IMAGES: Final = "diffusers, stablediffusion-ggml"

MODEL_KEYS: Final = (
    ModelKey("name", _T.TEXT, _C, "The model's name, by which requests and people call it.", "required"),
    ModelKey("backend", _T.TEXT, _C, "The backend that serves it, by its name or an alias.", "required"),
    ModelKey("alias", _T.TEXT, _C, "Another model that answers for this one; then there is no backend."),
    ModelKey("description", _T.TEXT, _N, "What the model is, for people."),
    ModelKey("usage", _T.TEXT, _N, "How to use it, for people."),
    ModelKey("license", _T.TEXT, _N, "The licence of its weights, for people."),
    ModelKey("urls", _T.TEXTS, _N, "Pages about it."),
    ModelKey("icon", _T.TEXT, _N, "The address of a picture."),
    ModelKey("tags", _T.TEXTS, _N, "Words to find it by."),
    ModelKey("disabled", _T.SWITCH, _C, "Whether the file is passed over as if it were not there.", "false"),
    ModelKey("pinned", _T.SWITCH, _C, "Whether it stays loaded once it is: `corral models keep`.", "false"),
    ModelKey("concurrency_groups", _T.TEXTS, _N, "Groups of models of which LocalAI loads one at a time."),
    ModelKey("limits.max_concurrent", _T.WHOLE, _C, "Requests that one replica takes at once; 0 leaves it open.", "0"),
    ModelKey("limits.retry_after_seconds", _T.WHOLE, _N, "What LocalAI tells clients to wait when it is full."),
    ModelKey("known_usecases", _T.TEXTS, _C, "What the model is for, in LocalAI's words.", "by backend and templates"),
    ModelKey("known_input_modalities", _T.TEXTS, _N, "What it understands: text, image, audio, video."),
    ModelKey("known_output_modalities", _T.TEXTS, _N, "What it makes: text, image, audio, video."),
    ModelKey("embeddings", _T.SWITCH, _L, "Whether it is loaded for embeddings.", "false", f"{_LLAMA}, transformers"),
    ModelKey("reranking", _T.SWITCH, _L, "Whether it is loaded for ranking documents.", "false", _LLAMA),
    # Loading.
    ModelKey("parameters.model", _T.TEXT, _L, "The weights: a path below the models directory, or a name.", "required"),
    ModelKey("context_size", _T.WHOLE, _L, "Tokens of context; -1 takes what the model was trained with.", "4096"),
    ModelKey("threads", _T.WHOLE, _L, "Processor threads.", "by the worker's machine"),
    ModelKey("gpu_layers", _T.WHOLE, _L, "Layers that are put on the GPU.", "all", _LLAMA),
    ModelKey("f16", _T.SWITCH, _L, "Whether the cache is kept in 16 bits.", "", f"{_LLAMA}, diffusers"),
    ModelKey("mmap", _T.SWITCH, _L, "Whether weights are mapped into memory; never on Intel GPUs.", "true", _LLAMA),
    ModelKey("mmlock", _T.SWITCH, _L, "Whether weights are locked into memory.", "false", _LLAMA),
    ModelKey("low_vram", _T.SWITCH, _L, "Whether to save video memory at the cost of speed.", "false"),
    ModelKey("numa", _T.SWITCH, _L, "Whether threads are spread over NUMA nodes.", "false", _LLAMA),
    ModelKey("mmproj", _T.TEXT, _L, "The projector for pictures or sound, below the models directory.", "", _LLAMA),
    ModelKey(
        "draft_model", _T.TEXT, _L, "A small model for speculative decoding, below the models directory.", "", _LLAMA
    ),
    ModelKey("n_draft", _T.WHOLE, _R, "Tokens that the draft model guesses, with LocalAI's backends.", "the engine's"),
    ModelKey("main_gpu", _T.TEXT, _L, "The GPU for small tensors.", "", _LLAMA),
    ModelKey("tensor_split", _T.TEXT, _L, "Shares of the model per GPU, as in `3,1`.", "", _LLAMA),
    ModelKey(
        "flash_attention", _T.SWITCH_OR_TEXT, _L, "Whether flash attention is used: on, off, auto.", "auto", _LLAMA
    ),
    ModelKey("no_kv_offloading", _T.SWITCH, _L, "Whether the cache stays in main memory.", "false", _LLAMA),
    ModelKey("cache_type_k", _T.TEXT, _L, "Number format of the keys in the cache, such as q8_0.", "", _LLAMA),
    ModelKey("cache_type_v", _T.TEXT, _L, "Number format of the values in the cache.", "", _LLAMA),
    ModelKey("no_mulmatq", _T.SWITCH, _L, "Whether quantised matrix products are avoided.", "false", _LLAMA),
    ModelKey("ngqa", _T.WHOLE, _L, "Groups of grouped-query attention, for old files.", "", _LLAMA),
    ModelKey("rms_norm_eps", _T.NUMBER, _L, "Epsilon of the normalisation, for old files.", "", _LLAMA),
    ModelKey("rope_scaling", _T.TEXT, _L, "How positions beyond the trained context are scaled.", "", _LLAMA),
    ModelKey("yarn_ext_factor", _T.NUMBER, _L, "YaRN's mix of extrapolation.", "", _LLAMA),
    ModelKey("yarn_attn_factor", _T.NUMBER, _L, "YaRN's scale of attention.", "", _LLAMA),
    ModelKey("yarn_beta_fast", _T.NUMBER, _L, "YaRN's low correction dimension.", "", _LLAMA),
    ModelKey("yarn_beta_slow", _T.NUMBER, _L, "YaRN's high correction dimension.", "", _LLAMA),
    ModelKey("lora_adapter", _T.TEXT, _L, "A LoRA adapter, as the backend finds it."),
    ModelKey("lora_base", _T.TEXT, _L, "The model that a LoRA adapter was made for."),
    ModelKey("lora_scale", _T.NUMBER, _L, "How strongly the adapter counts."),
    ModelKey("lora_adapters", _T.TEXTS, _L, "Several LoRA adapters."),
    ModelKey("lora_scales", _T.NUMBERS, _L, "How strongly each of them counts."),
    ModelKey("options", _T.TEXTS, _L, "Settings of the backend: `name:value`, `name=value` or a bare name."),
    ModelKey("overrides", _T.TEXTS, _L, "Metadata of the weights to replace, as llama.cpp writes them.", "", _LLAMA),
    ModelKey("engine_args", _T.MAPPING, _L, "Arguments of the engine itself, passed on as JSON.", "", _GPU_ENGINES),
    ModelKey("type", _T.TEXT, _L, "The kind of model, where a backend serves several.", "", "transformers, …"),
    ModelKey("quantization", _T.TEXT, _L, "The quantisation of the weights.", "", _GPU_ENGINES),
    ModelKey("dtype", _T.TEXT, _L, "The number format to compute in.", "", _GPU_ENGINES),
    ModelKey("load_format", _T.TEXT, _L, "The format of the weights.", "", _GPU_ENGINES),
    ModelKey("gpu_memory_utilization", _T.NUMBER, _L, "The share of video memory to use.", "", _GPU_ENGINES),
    ModelKey("max_model_len", _T.WHOLE, _L, "Tokens of prompt and answer together.", "", _GPU_ENGINES),
    ModelKey("tensor_parallel_size", _T.WHOLE, _L, "GPUs to spread the model over.", "", _GPU_ENGINES),
    ModelKey("swap_space", _T.WHOLE, _L, "GiB of main memory per GPU to swap to.", "", "vllm"),
    ModelKey("enforce_eager", _T.SWITCH, _L, "Whether CUDA graphs are not used.", "false", "vllm"),
    ModelKey("trust_remote_code", _T.SWITCH, _L, "Whether code that comes with the weights may run.", "false"),
    ModelKey("disable_log_stats", _T.SWITCH, _L, "Whether the engine logs no statistics.", "false", "vllm"),
    ModelKey("limit_mm_per_prompt.image", _T.WHOLE, _L, "Pictures per prompt.", "1", "vllm"),
    ModelKey("limit_mm_per_prompt.video", _T.WHOLE, _L, "Videos per prompt.", "1", "vllm"),
    ModelKey("limit_mm_per_prompt.audio", _T.WHOLE, _L, "Sounds per prompt.", "1", "vllm"),
    ModelKey("cuda", _T.SWITCH, _L, "Whether an NVIDIA GPU is used.", "false"),
    ModelKey("cfg_scale", _T.NUMBER, _L, "How closely a picture follows its prompt.", "", _IMAGES),
    ModelKey("step", _T.WHOLE, _N, "Steps in which LocalAI makes a picture.", "", _IMAGES),
    ModelKey("grpc.attempts", _T.WHOLE, _N, "How often LocalAI asks a starting backend whether it is ready."),
    ModelKey("grpc.attempts_sleep_time", _T.WHOLE, _N, "Seconds that LocalAI waits in between."),
    ModelKey("debug", _T.SWITCH, _N, "Whether LocalAI logs more about the model.", "false"),
    ModelKey("prompt_cache_all", _T.SWITCH, _R, "Whether LocalAI's backends keep prompts that they have read.", "true"),
    ModelKey("prompt_cache_path", _T.TEXT, _N, "Where LocalAI keeps prompts."),
    ModelKey("prompt_cache_ro", _T.SWITCH, _N, "Whether kept prompts are only read.", "false"),
    # Defaults of requests.
    ModelKey("parameters.temperature", _T.NUMBER, _R, "Randomness of answers.", "the engine's"),
    ModelKey("parameters.top_p", _T.NUMBER, _R, "The share of probability to choose from.", "the engine's"),
    ModelKey("parameters.top_k", _T.WHOLE, _R, "The number of tokens to choose from.", "the engine's"),
    ModelKey("parameters.min_p", _T.NUMBER, _R, "The least probability, relative to the best token's.", "the engine's"),
    ModelKey("parameters.typical_p", _T.NUMBER, _R, "Locally typical sampling.", "the engine's"),
    ModelKey("parameters.tfz", _T.NUMBER, _R, "Tail-free sampling.", "the engine's"),
    ModelKey("parameters.max_tokens", _T.WHOLE, _R, "Tokens of an answer; -1 or 0 for no limit.", "a setting"),
    ModelKey("parameters.repeat_penalty", _T.NUMBER, _R, "Penalty of repeated tokens.", "the engine's"),
    ModelKey("parameters.repeat_last_n", _T.WHOLE, _R, "Tokens that are looked at for repetitions.", "the engine's"),
    ModelKey("parameters.frequency_penalty", _T.NUMBER, _R, "Penalty by how often a token occurred.", "the engine's"),
    ModelKey("parameters.presence_penalty", _T.NUMBER, _R, "Penalty of tokens that occurred.", "the engine's"),
    ModelKey("parameters.seed", _T.WHOLE, _R, "The start of the random numbers; -1 for another one each time.", "-1"),
    ModelKey("parameters.ignore_eos", _T.SWITCH, _R, "Whether an answer goes on behind its end.", "false"),
    ModelKey("parameters.batch", _T.WHOLE, _L, "Tokens of a prompt that are processed at once.", "512", _LLAMA),
    ModelKey("parameters.rope_freq_base", _T.NUMBER, _L, "Base frequency of the positions.", "", _LLAMA),
    ModelKey("parameters.rope_freq_scale", _T.NUMBER, _L, "Scale of the positions.", "", _LLAMA),
    ModelKey("parameters.tokenizer", _T.TEXT, _L, "Another tokenizer than the model's own.", "", "vllm, coqui"),
    ModelKey("parameters.language", _T.TEXT, _R, "The language of sounds to transcribe.", "", "whisper"),
    ModelKey("parameters.translate", _T.SWITCH, _R, "Whether speech is translated into English.", "false", "whisper"),
    ModelKey("parameters.n", _T.WHOLE, _N, "Answers per request."),
    ModelKey("parameters.echo", _T.SWITCH, _N, "Whether answers begin with their prompt.", "false"),
    ModelKey("parameters.n_keep", _T.WHOLE, _R, "Tokens that stay when the context is full.", "0"),
    ModelKey("parameters.negative_prompt", _T.TEXT, _N, "What a picture shall not show.", "", _IMAGES),
    ModelKey("parameters.negative_prompt_scale", _T.NUMBER, _N, "How strongly that counts.", "", _IMAGES),
    ModelKey("parameters.use_fast_tokenizer", _T.SWITCH, _N, "Whether the fast tokenizer is used.", "", "transformers"),
    ModelKey("parameters.clip_skip", _T.WHOLE, _N, "Layers of CLIP to leave out.", "", _IMAGES),
    ModelKey("parameters.logprobs", _T.ANYTHING, _N, "Whether, or how many, probabilities are returned."),
    ModelKey("parameters.top_logprobs", _T.WHOLE, _N, "Alternatives to return for each token."),
    ModelKey("parameters.logit_bias", _T.MAPPING, _N, "Tokens to prefer or avoid."),
    ModelKey("mirostat", _T.WHOLE, _R, "The version of Mirostat sampling; 0 for none.", "0", _LLAMA),
    ModelKey("mirostat_eta", _T.NUMBER, _R, "Mirostat's learning rate.", "0.1", _LLAMA),
    ModelKey("mirostat_tau", _T.NUMBER, _R, "Mirostat's target.", "5", _LLAMA),
    ModelKey("stopwords", _T.TEXTS, _R, "Texts that end an answer."),
    ModelKey(
        "system_prompt",
        _T.TEXT,
        _R,
        "System message of the model, where its template shows it or a chat has none.",
    ),
    ModelKey("reasoning_effort", _T.TEXT, _R, "How much it thinks, where templates know that."),
    ModelKey("reasoning.disable", _T.SWITCH, _R, "Whether it answers without thinking.", "false"),
    ModelKey("chat_template_kwargs", _T.MAPPING, _R, "Values for the tokenizer's own template."),
    ModelKey("tts.voice", _T.TEXT, _R, "The voice that speaks."),
    ModelKey("tts.audio_path", _T.TEXT, _L, "A recording of the voice to imitate."),
    ModelKey("tts.voice_cloning", _T.SWITCH, _N, "Whether requests may bring a voice along.", "false"),
    # Prompts.
    ModelKey("template.use_tokenizer_template", _T.SWITCH, _R, "Whether the backend renders chats itself.", "false"),
    ModelKey("template.chat", _T.TEXT, _R, "The Go template of a whole chat."),
    ModelKey("template.chat_message", _T.TEXT, _R, "The Go template of one message."),
    ModelKey("template.completion", _T.TEXT, _R, "The Go template of a completion."),
    ModelKey("template.edit", _T.TEXT, _R, "The Go template of an edit."),
    ModelKey("template.function", _T.TEXT, _R, "The Go template of a chat with tools."),
    ModelKey("template.multimodal", _T.TEXT, _R, "The Go template that puts media into a message."),
    ModelKey("template.reply_prefix", _T.TEXT, _R, "What is put before answers."),
    ModelKey("template.join_chat_messages_by_character", _T.TEXT, _R, "What stands between messages.", "a new line"),
    ModelKey("roles", _T.MAPPING, _R, "What roles are called in prompts."),
    ModelKey("cutstrings", _T.TEXTS, _N, "Expressions that LocalAI cuts from answers."),
    ModelKey("extract_regex", _T.TEXTS, _N, "Expressions of which LocalAI keeps the matches."),
    ModelKey("trimspace", _T.TEXTS, _N, "Prefixes behind which LocalAI trims answers."),
    ModelKey("trimsuffix", _T.TEXTS, _N, "Ends that LocalAI trims from answers."),
    ModelKey("grammar", _T.TEXT, _N, "A grammar for answers, in llama.cpp's form."),
    ModelKey("feature_flags", _T.MAPPING, _N, "Switches of LocalAI's own."),
    ModelKey("function.disable_no_action", _T.SWITCH, _R, "Whether no `answer` tool is added to tools.", "false"),
    ModelKey("function.no_action_function_name", _T.TEXT, _R, "The name of that tool.", "answer"),
    ModelKey("function.no_action_description_name", _T.TEXT, _R, "The description of that tool."),
    ModelKey("function.grammar.disable", _T.SWITCH, _R, "Whether answers with tools follow no grammar.", "false"),
    ModelKey("function.grammar.triggers", _T.MAPPINGS, _L, "What switches a lazy grammar on.", "", _LLAMA),
    ModelKey("function.grammar.triggers[].word", _T.TEXT, _L, "A word that does.", "", _LLAMA),
    ModelKey("function.grammar.triggers[].at_start", _T.SWITCH, _N, "Whether only at the start.", "false"),
    ModelKey("function.grammar.parallel_calls", _T.SWITCH, _N, "Whether several tools may be called at once."),
    ModelKey("function.grammar.disable_parallel_new_lines", _T.SWITCH, _N, "Whether calls stand on one line."),
    ModelKey("function.grammar.expect_strings_after_json", _T.SWITCH, _N, "Whether text may follow a call."),
    ModelKey("function.grammar.mixed_mode", _T.SWITCH, _N, "Whether text and calls may be mixed."),
    ModelKey("function.grammar.no_mixed_free_string", _T.SWITCH, _N, "Whether mixed text is restricted."),
    ModelKey("function.grammar.properties_order", _T.TEXT, _N, "The order of a call's properties."),
    ModelKey("function.grammar.schema_type", _T.TEXT, _N, "The form of calls, such as llama3.1."),
    ModelKey("function.grammar.prefix", _T.TEXT, _N, "What stands before a call."),
    ModelKey("function.grammar.function_arguments_key", _T.TEXT, _N, "The key of a call's arguments."),
    ModelKey("function.grammar.function_name_key", _T.TEXT, _N, "The key of a call's name."),
    ModelKey("function.response_regex", _T.TEXTS, _N, "Expressions that find calls in answers."),
    ModelKey("function.json_regex_match", _T.TEXTS, _N, "Expressions that find the JSON of calls."),
    ModelKey("function.argument_regex", _T.TEXTS, _N, "Expressions that find arguments."),
    ModelKey("function.argument_regex_key_name", _T.TEXT, _N, "The group of an argument's name."),
    ModelKey("function.argument_regex_value_name", _T.TEXT, _N, "The group of an argument's value."),
    ModelKey("function.replace_function_results", _T.MAPPINGS, _N, "Replacements in calls before they are read."),
    ModelKey("function.replace_function_results[].key", _T.TEXT, _N, "An expression."),
    ModelKey("function.replace_function_results[].value", _T.TEXT, _N, "What takes its place."),
    ModelKey("function.replace_llm_results", _T.MAPPINGS, _N, "Replacements in answers before calls are looked for."),
    ModelKey("function.replace_llm_results[].key", _T.TEXT, _N, "An expression."),
    ModelKey("function.replace_llm_results[].value", _T.TEXT, _N, "What takes its place."),
    ModelKey("function.capture_llm_results", _T.TEXTS, _N, "Expressions of what is kept beside calls."),
    ModelKey("function.automatic_tool_parsing_fallback", _T.SWITCH, _N, "Whether calls of any form are looked for."),
    ModelKey("function.return_name_in_function_response", _T.SWITCH, _N, "Whether answers name the tool."),
    # Media.
    ModelKey("diffusers.cuda", _T.SWITCH, _N, "Whether an NVIDIA GPU is used.", "false", "diffusers"),
    ModelKey("diffusers.pipeline_type", _T.TEXT, _N, "The class of the pipeline.", "", "diffusers"),
    ModelKey("diffusers.scheduler_type", _T.TEXT, _N, "The scheduler.", "", "diffusers"),
    ModelKey("diffusers.enable_parameters", _T.TEXT, _N, "Parameters that the pipeline takes.", "", "diffusers"),
    ModelKey("diffusers.img2img", _T.SWITCH, _N, "Whether pictures are made from pictures.", "false", "diffusers"),
    ModelKey("diffusers.clip_model", _T.TEXT, _N, "Another CLIP model.", "", "diffusers"),
    ModelKey("diffusers.clip_subfolder", _T.TEXT, _N, "Where it is.", "", "diffusers"),
    ModelKey("diffusers.clip_skip", _T.WHOLE, _N, "Layers of CLIP to leave out.", "", "diffusers"),
    ModelKey("diffusers.control_net", _T.TEXT, _N, "A ControlNet model.", "", "diffusers"),
    # Files.
    ModelKey("download_files", _T.MAPPINGS, _C, "Files to download with the model."),
    ModelKey("download_files[].filename", _T.TEXT, _C, "The path below the models directory.", "required"),
    ModelKey("download_files[].uri", _T.TEXT, _C, "Where the file is to be had.", "required"),
    ModelKey("download_files[].sha256", _T.TEXT, _C, "Its SHA-256."),
    ModelKey("artifacts", _T.MAPPINGS, _C, "Repositories to download with a gallery's model that names no files."),
    ModelKey("artifacts[].name", _T.TEXT, _C, "The artefact's name: `model` for the first one."),
    ModelKey("artifacts[].target", _T.TEXT, _C, "`model`, or `companion` for what belongs to it.", "model"),
    ModelKey("artifacts[].source", _T.MAPPING, _C, "Where it is to be had."),
    ModelKey("artifacts[].source.type", _T.TEXT, _C, "The hub: huggingface."),
    ModelKey("artifacts[].source.repo", _T.TEXT, _C, "The repository, as owner/name."),
    ModelKey("artifacts[].source.revision", _T.TEXT, _C, "A branch, tag or commit.", "main"),
    ModelKey("artifacts[].source.token_env", _T.TEXT, _N, "HF_TOKEN, where a login is needed: a setting here."),
    ModelKey("artifacts[].source.allow_patterns", _T.TEXTS, _C, "The files to download.", "all"),
    ModelKey("artifacts[].source.ignore_patterns", _T.TEXTS, _C, "The files to leave out."),
    ModelKey(
        "artifacts[].resolved",
        _T.MAPPING,
        _C,
        "What was found when it was downloaded: then the model is loaded from there.",
    ),
    # Features of LocalAI's frontend.
    *(
        ModelKey(key, _T.ANYTHING, _N, f"LocalAI's {words}; Corral has none.")
        for key, words in (
            ("pipeline", "chain of models for voice"),
            ("router", "choice among models"),
            ("proxy", "forwarding to other services"),
            ("pii", "handling of personal data"),
            ("pii_detection", "search for personal data"),
            ("mcp", "servers of tools"),
            ("agent", "agents"),
            ("mitm", "interception"),
            ("compression", "compression of prompts"),
        )
    ),
)

MISPLACED: Final[Mapping[str, str]] = {
    "parameters.context_size": "context_size",
    "parameters.f16": "f16",
    "parameters.mmap": "mmap",
    "parameters.threads": "threads",
    "parameters.voice": "tts.voice",
    "template.image": "template.multimodal",
}
"""Keys that LocalAI's gallery has where nothing reads them, and those that were meant."""

OPEN_PARTS: Final = frozenset({"function", "reasoning"})
"""Parts that have keys which only LocalAI knows: there only keys that look like misspellings are reported."""
FREE_PARTS: Final = frozenset({"engine_args", "roles", "chat_template_kwargs", "feature_flags", "artifacts[].resolved"})
"""Parts whose keys are their author's, or the backend's."""

_USECASES: Final = """
    chat completion edit embeddings rerank image transcript tts sound_generation tokenize vad video detection vision
    face_recognition speaker_recognition audio_transform diarization realtime_audio score depth token_classify
    sound_classification 3d llm
"""
USECASES: Final = frozenset(_USECASES.split())
"""LocalAI's words in `known_usecases`."""

OPTIONS: Final[Mapping[str, str]] = {
    "llama-cpp": "use_jinja spec_type spec_n_max spec_p_min parallel cache_reuse reasoning_format mtp_draft mtp_path "
    "ssd_streaming context_shift pooling",
    "stablediffusion-ggml": "diffusion_model vae_path sampler scheduler vae_decode_only llm_path t5xxl_path "
    "offload_params_to_cpu audio_vae_path embeddings_connectors_path clip_l_path clip_g_path clip_vision_path "
    "flow_shift uncond_diffusion_model_path diffusion_flash_attn keep_clip_on_cpu cfg_scale guidance_scale",
    "diffusers, longcat-video": "torch_dtype attention_backend true_cfg_scale offload_to_cpu use_distill",
    "vllm, sglang, transformers": "tool_parser reasoning_parser batch_size device do_sample",
    "sherpa-onnx": "type subtype tokens lexicon lexicon_gb lexicon_us lexicon_zh data_dir dict_dir voices "
    "asr.decoding_method asr.feature_dim asr.sample_rate asr.sense_voice.use_itn asr.whisper.tail_paddings "
    "asr.whisper.task online.chunk_samples online.enable_endpoint online.rule1_min_trailing_silence "
    "online.rule2_min_trailing_silence online.rule3_min_utterance_length tts.length_scale tts.max_num_sentences "
    "tts.noise_scale tts.noise_scale_w tts.speed vad.buffer_size vad.max_speech vad.min_silence vad.min_speech "
    "vad.sample_rate vad.threshold vad.window_size supertonic.default_lang supertonic.default_voice "
    "supertonic.silence supertonic.speed supertonic.steps",
    "whisper, silero-vad": "vad_only family",
    "speech": "backend codec lang_code speaker voice voices_dir default_voice tokenizer mode task sample_rate "
    "temperature top_p inference_steps source",
    "music and video": "dit_model text_encoder_model vae_model init_lm lm_backend lm_cfg_scale lm_model_path "
    "model_path offload_dit_to_cpu use_flash_attention audio_vae audio_vae_config video_dequant_bf16 video_device "
    "video_encoder video_height video_num_frames video_partition video_tokenizer video_vae video_vae_config "
    "video_width",
    "faces and speakers": "verify_threshold engine antispoof_v1se_onnx antispoof_v2_onnx model_pack detector_onnx "
    "recognizer_onnx metric_model",
}
"""Names in `options` that occur in LocalAI's gallery, by who reads them. Every option is passed on, known or not."""

OWN_WEIGHTS: Final = frozenset({"chatterbox", "kokoro", "pattern", "pocket-tts", "rerankers"})
"""Backends that bring weights along, or fetch what they need: models of theirs may go without `parameters.model`."""
