from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmbeddingLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMBEDDING_LAYOUT_UNSPECIFIED: _ClassVar[EmbeddingLayout]
    EMBEDDING_LAYOUT_FINAL: _ClassVar[EmbeddingLayout]
    EMBEDDING_LAYOUT_PER_TOKEN: _ClassVar[EmbeddingLayout]
EMBEDDING_LAYOUT_UNSPECIFIED: EmbeddingLayout
EMBEDDING_LAYOUT_FINAL: EmbeddingLayout
EMBEDDING_LAYOUT_PER_TOKEN: EmbeddingLayout

class HealthMessage(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Result(_message.Message):
    __slots__ = ("message", "success")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    message: str
    success: bool
    def __init__(self, message: _Optional[str] = ..., success: _Optional[bool] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("message", "tokens", "prompt_tokens", "timing_prompt_processing", "timing_token_generation", "audio", "logprobs", "chat_deltas")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMING_PROMPT_PROCESSING_FIELD_NUMBER: _ClassVar[int]
    TIMING_TOKEN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHAT_DELTAS_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    tokens: int
    prompt_tokens: int
    timing_prompt_processing: float
    timing_token_generation: float
    audio: bytes
    logprobs: bytes
    chat_deltas: _containers.RepeatedCompositeFieldContainer[ChatDelta]
    def __init__(self, message: _Optional[bytes] = ..., tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., timing_prompt_processing: _Optional[float] = ..., timing_token_generation: _Optional[float] = ..., audio: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., chat_deltas: _Optional[_Iterable[_Union[ChatDelta, _Mapping]]] = ...) -> None: ...

class ChatDelta(_message.Message):
    __slots__ = ("content", "reasoning_content", "tool_calls")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REASONING_CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    content: str
    reasoning_content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallDelta]
    def __init__(self, content: _Optional[str] = ..., reasoning_content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallDelta, _Mapping]]] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("state", "memory")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNINITIALIZED: _ClassVar[StatusResponse.State]
        BUSY: _ClassVar[StatusResponse.State]
        READY: _ClassVar[StatusResponse.State]
        ERROR: _ClassVar[StatusResponse.State]
    UNINITIALIZED: StatusResponse.State
    BUSY: StatusResponse.State
    READY: StatusResponse.State
    ERROR: StatusResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    state: StatusResponse.State
    memory: MemoryUsageData
    def __init__(self, state: _Optional[_Union[StatusResponse.State, str]] = ..., memory: _Optional[_Union[MemoryUsageData, _Mapping]] = ...) -> None: ...

class MemoryUsageData(_message.Message):
    __slots__ = ("total", "breakdown")
    class BreakdownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BREAKDOWN_FIELD_NUMBER: _ClassVar[int]
    total: int
    breakdown: _containers.ScalarMap[str, int]
    def __init__(self, total: _Optional[int] = ..., breakdown: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ModelOptions(_message.Message):
    __slots__ = ("Model", "ContextSize", "Seed", "NBatch", "F16Memory", "MLock", "MMap", "VocabOnly", "LowVRAM", "Embeddings", "NUMA", "NGPULayers", "MainGPU", "TensorSplit", "Threads", "RopeFreqBase", "RopeFreqScale", "RMSNormEps", "NGQA", "ModelFile", "PipelineType", "SchedulerType", "CUDA", "CFGScale", "IMG2IMG", "CLIPModel", "CLIPSubfolder", "CLIPSkip", "Tokenizer", "LoraBase", "LoraAdapter", "NoMulMatQ", "AudioPath", "DraftModel", "Quantization", "MMProj", "LoraScale", "RopeScaling", "YarnExtFactor", "YarnAttnFactor", "YarnBetaFast", "YarnBetaSlow", "ControlNet", "Type", "GPUMemoryUtilization", "TrustRemoteCode", "EnforceEager", "SwapSpace", "MaxModelLen", "TensorParallelSize", "FlashAttention", "NoKVOffload", "LoadFormat", "ModelPath", "LoraAdapters", "LoraScales", "Options", "CacheTypeKey", "CacheTypeValue", "GrammarTriggers", "DisableLogStatus", "DType", "LimitImagePerPrompt", "LimitVideoPerPrompt", "LimitAudioPerPrompt", "Reranking", "Overrides", "EngineArgs", "Proxy", "EnableScore")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXTSIZE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NBATCH_FIELD_NUMBER: _ClassVar[int]
    F16MEMORY_FIELD_NUMBER: _ClassVar[int]
    MLOCK_FIELD_NUMBER: _ClassVar[int]
    MMAP_FIELD_NUMBER: _ClassVar[int]
    VOCABONLY_FIELD_NUMBER: _ClassVar[int]
    LOWVRAM_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    NUMA_FIELD_NUMBER: _ClassVar[int]
    NGPULAYERS_FIELD_NUMBER: _ClassVar[int]
    MAINGPU_FIELD_NUMBER: _ClassVar[int]
    TENSORSPLIT_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    ROPEFREQBASE_FIELD_NUMBER: _ClassVar[int]
    ROPEFREQSCALE_FIELD_NUMBER: _ClassVar[int]
    RMSNORMEPS_FIELD_NUMBER: _ClassVar[int]
    NGQA_FIELD_NUMBER: _ClassVar[int]
    MODELFILE_FIELD_NUMBER: _ClassVar[int]
    PIPELINETYPE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULERTYPE_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    CFGSCALE_FIELD_NUMBER: _ClassVar[int]
    IMG2IMG_FIELD_NUMBER: _ClassVar[int]
    CLIPMODEL_FIELD_NUMBER: _ClassVar[int]
    CLIPSUBFOLDER_FIELD_NUMBER: _ClassVar[int]
    CLIPSKIP_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    LORABASE_FIELD_NUMBER: _ClassVar[int]
    LORAADAPTER_FIELD_NUMBER: _ClassVar[int]
    NOMULMATQ_FIELD_NUMBER: _ClassVar[int]
    AUDIOPATH_FIELD_NUMBER: _ClassVar[int]
    DRAFTMODEL_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    MMPROJ_FIELD_NUMBER: _ClassVar[int]
    LORASCALE_FIELD_NUMBER: _ClassVar[int]
    ROPESCALING_FIELD_NUMBER: _ClassVar[int]
    YARNEXTFACTOR_FIELD_NUMBER: _ClassVar[int]
    YARNATTNFACTOR_FIELD_NUMBER: _ClassVar[int]
    YARNBETAFAST_FIELD_NUMBER: _ClassVar[int]
    YARNBETASLOW_FIELD_NUMBER: _ClassVar[int]
    CONTROLNET_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    GPUMEMORYUTILIZATION_FIELD_NUMBER: _ClassVar[int]
    TRUSTREMOTECODE_FIELD_NUMBER: _ClassVar[int]
    ENFORCEEAGER_FIELD_NUMBER: _ClassVar[int]
    SWAPSPACE_FIELD_NUMBER: _ClassVar[int]
    MAXMODELLEN_FIELD_NUMBER: _ClassVar[int]
    TENSORPARALLELSIZE_FIELD_NUMBER: _ClassVar[int]
    FLASHATTENTION_FIELD_NUMBER: _ClassVar[int]
    NOKVOFFLOAD_FIELD_NUMBER: _ClassVar[int]
    LOADFORMAT_FIELD_NUMBER: _ClassVar[int]
    MODELPATH_FIELD_NUMBER: _ClassVar[int]
    LORAADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LORASCALES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CACHETYPEKEY_FIELD_NUMBER: _ClassVar[int]
    CACHETYPEVALUE_FIELD_NUMBER: _ClassVar[int]
    GRAMMARTRIGGERS_FIELD_NUMBER: _ClassVar[int]
    DISABLELOGSTATUS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LIMITIMAGEPERPROMPT_FIELD_NUMBER: _ClassVar[int]
    LIMITVIDEOPERPROMPT_FIELD_NUMBER: _ClassVar[int]
    LIMITAUDIOPERPROMPT_FIELD_NUMBER: _ClassVar[int]
    RERANKING_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    ENGINEARGS_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    ENABLESCORE_FIELD_NUMBER: _ClassVar[int]
    Model: str
    ContextSize: int
    Seed: int
    NBatch: int
    F16Memory: bool
    MLock: bool
    MMap: bool
    VocabOnly: bool
    LowVRAM: bool
    Embeddings: bool
    NUMA: bool
    NGPULayers: int
    MainGPU: str
    TensorSplit: str
    Threads: int
    RopeFreqBase: float
    RopeFreqScale: float
    RMSNormEps: float
    NGQA: int
    ModelFile: str
    PipelineType: str
    SchedulerType: str
    CUDA: bool
    CFGScale: float
    IMG2IMG: bool
    CLIPModel: str
    CLIPSubfolder: str
    CLIPSkip: int
    Tokenizer: str
    LoraBase: str
    LoraAdapter: str
    NoMulMatQ: bool
    AudioPath: str
    DraftModel: str
    Quantization: str
    MMProj: str
    LoraScale: float
    RopeScaling: str
    YarnExtFactor: float
    YarnAttnFactor: float
    YarnBetaFast: float
    YarnBetaSlow: float
    ControlNet: str
    Type: str
    GPUMemoryUtilization: float
    TrustRemoteCode: bool
    EnforceEager: bool
    SwapSpace: int
    MaxModelLen: int
    TensorParallelSize: int
    FlashAttention: str
    NoKVOffload: bool
    LoadFormat: str
    ModelPath: str
    LoraAdapters: _containers.RepeatedScalarFieldContainer[str]
    LoraScales: _containers.RepeatedScalarFieldContainer[float]
    Options: _containers.RepeatedScalarFieldContainer[str]
    CacheTypeKey: str
    CacheTypeValue: str
    GrammarTriggers: _containers.RepeatedCompositeFieldContainer[GrammarTrigger]
    DisableLogStatus: bool
    DType: str
    LimitImagePerPrompt: int
    LimitVideoPerPrompt: int
    LimitAudioPerPrompt: int
    Reranking: bool
    Overrides: _containers.RepeatedScalarFieldContainer[str]
    EngineArgs: str
    Proxy: ProxyOptions
    EnableScore: bool
    def __init__(self, Model: _Optional[str] = ..., ContextSize: _Optional[int] = ..., Seed: _Optional[int] = ..., NBatch: _Optional[int] = ..., F16Memory: _Optional[bool] = ..., MLock: _Optional[bool] = ..., MMap: _Optional[bool] = ..., VocabOnly: _Optional[bool] = ..., LowVRAM: _Optional[bool] = ..., Embeddings: _Optional[bool] = ..., NUMA: _Optional[bool] = ..., NGPULayers: _Optional[int] = ..., MainGPU: _Optional[str] = ..., TensorSplit: _Optional[str] = ..., Threads: _Optional[int] = ..., RopeFreqBase: _Optional[float] = ..., RopeFreqScale: _Optional[float] = ..., RMSNormEps: _Optional[float] = ..., NGQA: _Optional[int] = ..., ModelFile: _Optional[str] = ..., PipelineType: _Optional[str] = ..., SchedulerType: _Optional[str] = ..., CUDA: _Optional[bool] = ..., CFGScale: _Optional[float] = ..., IMG2IMG: _Optional[bool] = ..., CLIPModel: _Optional[str] = ..., CLIPSubfolder: _Optional[str] = ..., CLIPSkip: _Optional[int] = ..., Tokenizer: _Optional[str] = ..., LoraBase: _Optional[str] = ..., LoraAdapter: _Optional[str] = ..., NoMulMatQ: _Optional[bool] = ..., AudioPath: _Optional[str] = ..., DraftModel: _Optional[str] = ..., Quantization: _Optional[str] = ..., MMProj: _Optional[str] = ..., LoraScale: _Optional[float] = ..., RopeScaling: _Optional[str] = ..., YarnExtFactor: _Optional[float] = ..., YarnAttnFactor: _Optional[float] = ..., YarnBetaFast: _Optional[float] = ..., YarnBetaSlow: _Optional[float] = ..., ControlNet: _Optional[str] = ..., Type: _Optional[str] = ..., GPUMemoryUtilization: _Optional[float] = ..., TrustRemoteCode: _Optional[bool] = ..., EnforceEager: _Optional[bool] = ..., SwapSpace: _Optional[int] = ..., MaxModelLen: _Optional[int] = ..., TensorParallelSize: _Optional[int] = ..., FlashAttention: _Optional[str] = ..., NoKVOffload: _Optional[bool] = ..., LoadFormat: _Optional[str] = ..., ModelPath: _Optional[str] = ..., LoraAdapters: _Optional[_Iterable[str]] = ..., LoraScales: _Optional[_Iterable[float]] = ..., Options: _Optional[_Iterable[str]] = ..., CacheTypeKey: _Optional[str] = ..., CacheTypeValue: _Optional[str] = ..., GrammarTriggers: _Optional[_Iterable[_Union[GrammarTrigger, _Mapping]]] = ..., DisableLogStatus: _Optional[bool] = ..., DType: _Optional[str] = ..., LimitImagePerPrompt: _Optional[int] = ..., LimitVideoPerPrompt: _Optional[int] = ..., LimitAudioPerPrompt: _Optional[int] = ..., Reranking: _Optional[bool] = ..., Overrides: _Optional[_Iterable[str]] = ..., EngineArgs: _Optional[str] = ..., Proxy: _Optional[_Union[ProxyOptions, _Mapping]] = ..., EnableScore: _Optional[bool] = ...) -> None: ...

class GrammarTrigger(_message.Message):
    __slots__ = ("word",)
    WORD_FIELD_NUMBER: _ClassVar[int]
    word: str
    def __init__(self, word: _Optional[str] = ...) -> None: ...

class ProxyOptions(_message.Message):
    __slots__ = ("upstream_url", "mode", "provider", "api_key_env", "api_key_file", "upstream_model", "request_timeout_seconds", "cache_prompt")
    UPSTREAM_URL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    API_KEY_ENV_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FILE_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    upstream_url: str
    mode: str
    provider: str
    api_key_env: str
    api_key_file: str
    upstream_model: str
    request_timeout_seconds: int
    cache_prompt: bool
    def __init__(self, upstream_url: _Optional[str] = ..., mode: _Optional[str] = ..., provider: _Optional[str] = ..., api_key_env: _Optional[str] = ..., api_key_file: _Optional[str] = ..., upstream_model: _Optional[str] = ..., request_timeout_seconds: _Optional[int] = ..., cache_prompt: _Optional[bool] = ...) -> None: ...

class PredictOptions(_message.Message):
    __slots__ = ("Prompt", "Seed", "Threads", "Tokens", "TopK", "Repeat", "Batch", "NKeep", "Temperature", "Penalty", "F16KV", "DebugMode", "StopPrompts", "IgnoreEOS", "TailFreeSamplingZ", "TypicalP", "FrequencyPenalty", "PresencePenalty", "Mirostat", "MirostatETA", "MirostatTAU", "PenalizeNL", "LogitBias", "MLock", "MMap", "PromptCacheAll", "PromptCacheRO", "Grammar", "MainGPU", "TensorSplit", "TopP", "PromptCachePath", "Debug", "EmbeddingTokens", "Embeddings", "RopeFreqBase", "RopeFreqScale", "NegativePromptScale", "NegativePrompt", "NDraft", "Images", "UseTokenizerTemplate", "Messages", "Videos", "Audios", "CorrelationId", "Tools", "ToolChoice", "Logprobs", "TopLogprobs", "Metadata", "MinP", "ModelIdentity")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOPK_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    NKEEP_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    PENALTY_FIELD_NUMBER: _ClassVar[int]
    F16KV_FIELD_NUMBER: _ClassVar[int]
    DEBUGMODE_FIELD_NUMBER: _ClassVar[int]
    STOPPROMPTS_FIELD_NUMBER: _ClassVar[int]
    IGNOREEOS_FIELD_NUMBER: _ClassVar[int]
    TAILFREESAMPLINGZ_FIELD_NUMBER: _ClassVar[int]
    TYPICALP_FIELD_NUMBER: _ClassVar[int]
    FREQUENCYPENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCEPENALTY_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_FIELD_NUMBER: _ClassVar[int]
    MIROSTATETA_FIELD_NUMBER: _ClassVar[int]
    MIROSTATTAU_FIELD_NUMBER: _ClassVar[int]
    PENALIZENL_FIELD_NUMBER: _ClassVar[int]
    LOGITBIAS_FIELD_NUMBER: _ClassVar[int]
    MLOCK_FIELD_NUMBER: _ClassVar[int]
    MMAP_FIELD_NUMBER: _ClassVar[int]
    PROMPTCACHEALL_FIELD_NUMBER: _ClassVar[int]
    PROMPTCACHERO_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    MAINGPU_FIELD_NUMBER: _ClassVar[int]
    TENSORSPLIT_FIELD_NUMBER: _ClassVar[int]
    TOPP_FIELD_NUMBER: _ClassVar[int]
    PROMPTCACHEPATH_FIELD_NUMBER: _ClassVar[int]
    DEBUG_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGTOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ROPEFREQBASE_FIELD_NUMBER: _ClassVar[int]
    ROPEFREQSCALE_FIELD_NUMBER: _ClassVar[int]
    NEGATIVEPROMPTSCALE_FIELD_NUMBER: _ClassVar[int]
    NEGATIVEPROMPT_FIELD_NUMBER: _ClassVar[int]
    NDRAFT_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    USETOKENIZERTEMPLATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VIDEOS_FIELD_NUMBER: _ClassVar[int]
    AUDIOS_FIELD_NUMBER: _ClassVar[int]
    CORRELATIONID_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOLCHOICE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOPLOGPROBS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MINP_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    Prompt: str
    Seed: int
    Threads: int
    Tokens: int
    TopK: int
    Repeat: int
    Batch: int
    NKeep: int
    Temperature: float
    Penalty: float
    F16KV: bool
    DebugMode: bool
    StopPrompts: _containers.RepeatedScalarFieldContainer[str]
    IgnoreEOS: bool
    TailFreeSamplingZ: float
    TypicalP: float
    FrequencyPenalty: float
    PresencePenalty: float
    Mirostat: int
    MirostatETA: float
    MirostatTAU: float
    PenalizeNL: bool
    LogitBias: str
    MLock: bool
    MMap: bool
    PromptCacheAll: bool
    PromptCacheRO: bool
    Grammar: str
    MainGPU: str
    TensorSplit: str
    TopP: float
    PromptCachePath: str
    Debug: bool
    EmbeddingTokens: _containers.RepeatedScalarFieldContainer[int]
    Embeddings: str
    RopeFreqBase: float
    RopeFreqScale: float
    NegativePromptScale: float
    NegativePrompt: str
    NDraft: int
    Images: _containers.RepeatedScalarFieldContainer[str]
    UseTokenizerTemplate: bool
    Messages: _containers.RepeatedCompositeFieldContainer[Message]
    Videos: _containers.RepeatedScalarFieldContainer[str]
    Audios: _containers.RepeatedScalarFieldContainer[str]
    CorrelationId: str
    Tools: str
    ToolChoice: str
    Logprobs: int
    TopLogprobs: int
    Metadata: _containers.ScalarMap[str, str]
    MinP: float
    ModelIdentity: str
    def __init__(self, Prompt: _Optional[str] = ..., Seed: _Optional[int] = ..., Threads: _Optional[int] = ..., Tokens: _Optional[int] = ..., TopK: _Optional[int] = ..., Repeat: _Optional[int] = ..., Batch: _Optional[int] = ..., NKeep: _Optional[int] = ..., Temperature: _Optional[float] = ..., Penalty: _Optional[float] = ..., F16KV: _Optional[bool] = ..., DebugMode: _Optional[bool] = ..., StopPrompts: _Optional[_Iterable[str]] = ..., IgnoreEOS: _Optional[bool] = ..., TailFreeSamplingZ: _Optional[float] = ..., TypicalP: _Optional[float] = ..., FrequencyPenalty: _Optional[float] = ..., PresencePenalty: _Optional[float] = ..., Mirostat: _Optional[int] = ..., MirostatETA: _Optional[float] = ..., MirostatTAU: _Optional[float] = ..., PenalizeNL: _Optional[bool] = ..., LogitBias: _Optional[str] = ..., MLock: _Optional[bool] = ..., MMap: _Optional[bool] = ..., PromptCacheAll: _Optional[bool] = ..., PromptCacheRO: _Optional[bool] = ..., Grammar: _Optional[str] = ..., MainGPU: _Optional[str] = ..., TensorSplit: _Optional[str] = ..., TopP: _Optional[float] = ..., PromptCachePath: _Optional[str] = ..., Debug: _Optional[bool] = ..., EmbeddingTokens: _Optional[_Iterable[int]] = ..., Embeddings: _Optional[str] = ..., RopeFreqBase: _Optional[float] = ..., RopeFreqScale: _Optional[float] = ..., NegativePromptScale: _Optional[float] = ..., NegativePrompt: _Optional[str] = ..., NDraft: _Optional[int] = ..., Images: _Optional[_Iterable[str]] = ..., UseTokenizerTemplate: _Optional[bool] = ..., Messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., Videos: _Optional[_Iterable[str]] = ..., Audios: _Optional[_Iterable[str]] = ..., CorrelationId: _Optional[str] = ..., Tools: _Optional[str] = ..., ToolChoice: _Optional[str] = ..., Logprobs: _Optional[int] = ..., TopLogprobs: _Optional[int] = ..., Metadata: _Optional[_Mapping[str, str]] = ..., MinP: _Optional[float] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "name", "tool_call_id", "reasoning_content", "tool_calls")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REASONING_CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    tool_call_id: str
    reasoning_content: str
    tool_calls: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ..., tool_call_id: _Optional[str] = ..., reasoning_content: _Optional[str] = ..., tool_calls: _Optional[str] = ...) -> None: ...

class EmbeddingResult(_message.Message):
    __slots__ = ("embeddings", "tokens", "dim", "prompt_tokens", "layout")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedScalarFieldContainer[float]
    tokens: int
    dim: int
    prompt_tokens: int
    layout: EmbeddingLayout
    def __init__(self, embeddings: _Optional[_Iterable[float]] = ..., tokens: _Optional[int] = ..., dim: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., layout: _Optional[_Union[EmbeddingLayout, str]] = ...) -> None: ...

class TokenizationResponse(_message.Message):
    __slots__ = ("length", "tokens")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    length: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, length: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: str
    def __init__(self, content: _Optional[str] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("query", "documents", "top_n", "ModelIdentity")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    query: str
    documents: _containers.RepeatedScalarFieldContainer[str]
    top_n: int
    ModelIdentity: str
    def __init__(self, query: _Optional[str] = ..., documents: _Optional[_Iterable[str]] = ..., top_n: _Optional[int] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class RerankResult(_message.Message):
    __slots__ = ("usage", "results")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    results: _containers.RepeatedCompositeFieldContainer[DocumentResult]
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., results: _Optional[_Iterable[_Union[DocumentResult, _Mapping]]] = ...) -> None: ...

class DocumentResult(_message.Message):
    __slots__ = ("index", "text", "relevance_score")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_SCORE_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    relevance_score: float
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., relevance_score: _Optional[float] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("total_tokens", "prompt_tokens")
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    total_tokens: int
    prompt_tokens: int
    def __init__(self, total_tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("prompt", "candidates", "include_token_logprobs", "length_normalize", "ModelIdentity", "stable_prefix_len")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    STABLE_PREFIX_LEN_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    candidates: _containers.RepeatedScalarFieldContainer[str]
    include_token_logprobs: bool
    length_normalize: bool
    ModelIdentity: str
    stable_prefix_len: int
    def __init__(self, prompt: _Optional[str] = ..., candidates: _Optional[_Iterable[str]] = ..., include_token_logprobs: _Optional[bool] = ..., length_normalize: _Optional[bool] = ..., ModelIdentity: _Optional[str] = ..., stable_prefix_len: _Optional[int] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("candidates",)
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[CandidateScore]
    def __init__(self, candidates: _Optional[_Iterable[_Union[CandidateScore, _Mapping]]] = ...) -> None: ...

class CandidateScore(_message.Message):
    __slots__ = ("log_prob", "length_normalized_log_prob", "tokens", "num_tokens")
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    LENGTH_NORMALIZED_LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    log_prob: float
    length_normalized_log_prob: float
    tokens: _containers.RepeatedCompositeFieldContainer[TokenLogProb]
    num_tokens: int
    def __init__(self, log_prob: _Optional[float] = ..., length_normalized_log_prob: _Optional[float] = ..., tokens: _Optional[_Iterable[_Union[TokenLogProb, _Mapping]]] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class TokenLogProb(_message.Message):
    __slots__ = ("token", "log_prob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    token: str
    log_prob: float
    def __init__(self, token: _Optional[str] = ..., log_prob: _Optional[float] = ...) -> None: ...

class TTSRequest(_message.Message):
    __slots__ = ("text", "model", "dst", "voice", "language", "instructions", "params", "ModelIdentity")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    text: str
    model: str
    dst: str
    voice: str
    language: str
    instructions: str
    params: _containers.ScalarMap[str, str]
    ModelIdentity: str
    def __init__(self, text: _Optional[str] = ..., model: _Optional[str] = ..., dst: _Optional[str] = ..., voice: _Optional[str] = ..., language: _Optional[str] = ..., instructions: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class SoundGenerationRequest(_message.Message):
    __slots__ = ("text", "model", "dst", "duration", "temperature", "sample", "src", "src_divisor", "think", "caption", "lyrics", "bpm", "keyscale", "language", "timesignature", "instrumental", "ModelIdentity")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SRC_FIELD_NUMBER: _ClassVar[int]
    SRC_DIVISOR_FIELD_NUMBER: _ClassVar[int]
    THINK_FIELD_NUMBER: _ClassVar[int]
    CAPTION_FIELD_NUMBER: _ClassVar[int]
    LYRICS_FIELD_NUMBER: _ClassVar[int]
    BPM_FIELD_NUMBER: _ClassVar[int]
    KEYSCALE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TIMESIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INSTRUMENTAL_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    text: str
    model: str
    dst: str
    duration: float
    temperature: float
    sample: bool
    src: str
    src_divisor: int
    think: bool
    caption: str
    lyrics: str
    bpm: int
    keyscale: str
    language: str
    timesignature: str
    instrumental: bool
    ModelIdentity: str
    def __init__(self, text: _Optional[str] = ..., model: _Optional[str] = ..., dst: _Optional[str] = ..., duration: _Optional[float] = ..., temperature: _Optional[float] = ..., sample: _Optional[bool] = ..., src: _Optional[str] = ..., src_divisor: _Optional[int] = ..., think: _Optional[bool] = ..., caption: _Optional[str] = ..., lyrics: _Optional[str] = ..., bpm: _Optional[int] = ..., keyscale: _Optional[str] = ..., language: _Optional[str] = ..., timesignature: _Optional[str] = ..., instrumental: _Optional[bool] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class TranscriptRequest(_message.Message):
    __slots__ = ("dst", "language", "threads", "translate", "diarize", "prompt", "temperature", "timestamp_granularities", "stream", "ModelIdentity")
    DST_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    TRANSLATE_FIELD_NUMBER: _ClassVar[int]
    DIARIZE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_GRANULARITIES_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    dst: str
    language: str
    threads: int
    translate: bool
    diarize: bool
    prompt: str
    temperature: float
    timestamp_granularities: _containers.RepeatedScalarFieldContainer[str]
    stream: bool
    ModelIdentity: str
    def __init__(self, dst: _Optional[str] = ..., language: _Optional[str] = ..., threads: _Optional[int] = ..., translate: _Optional[bool] = ..., diarize: _Optional[bool] = ..., prompt: _Optional[str] = ..., temperature: _Optional[float] = ..., timestamp_granularities: _Optional[_Iterable[str]] = ..., stream: _Optional[bool] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class TranscriptResult(_message.Message):
    __slots__ = ("segments", "text", "language", "duration", "eou")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    EOU_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[TranscriptSegment]
    text: str
    language: str
    duration: float
    eou: bool
    def __init__(self, segments: _Optional[_Iterable[_Union[TranscriptSegment, _Mapping]]] = ..., text: _Optional[str] = ..., language: _Optional[str] = ..., duration: _Optional[float] = ..., eou: _Optional[bool] = ...) -> None: ...

class TranscriptSegment(_message.Message):
    __slots__ = ("id", "start", "end", "text", "tokens", "speaker", "words")
    ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    id: int
    start: int
    end: int
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    speaker: str
    words: _containers.RepeatedCompositeFieldContainer[TranscriptWord]
    def __init__(self, id: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., speaker: _Optional[str] = ..., words: _Optional[_Iterable[_Union[TranscriptWord, _Mapping]]] = ...) -> None: ...

class TranscriptWord(_message.Message):
    __slots__ = ("start", "end", "text")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    text: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class TranscriptStreamResponse(_message.Message):
    __slots__ = ("delta", "final_result")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINAL_RESULT_FIELD_NUMBER: _ClassVar[int]
    delta: str
    final_result: TranscriptResult
    def __init__(self, delta: _Optional[str] = ..., final_result: _Optional[_Union[TranscriptResult, _Mapping]] = ...) -> None: ...

class VADRequest(_message.Message):
    __slots__ = ("audio", "ModelIdentity")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    audio: _containers.RepeatedScalarFieldContainer[float]
    ModelIdentity: str
    def __init__(self, audio: _Optional[_Iterable[float]] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class VADResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[VADSegment]
    def __init__(self, segments: _Optional[_Iterable[_Union[VADSegment, _Mapping]]] = ...) -> None: ...

class VADSegment(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: float
    end: float
    def __init__(self, start: _Optional[float] = ..., end: _Optional[float] = ...) -> None: ...

class GenerateImageRequest(_message.Message):
    __slots__ = ("height", "width", "step", "seed", "positive_prompt", "negative_prompt", "dst", "src", "EnableParameters", "CLIPSkip", "ref_images", "ModelIdentity")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POSITIVE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    SRC_FIELD_NUMBER: _ClassVar[int]
    ENABLEPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CLIPSKIP_FIELD_NUMBER: _ClassVar[int]
    REF_IMAGES_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    step: int
    seed: int
    positive_prompt: str
    negative_prompt: str
    dst: str
    src: str
    EnableParameters: str
    CLIPSkip: int
    ref_images: _containers.RepeatedScalarFieldContainer[str]
    ModelIdentity: str
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ..., step: _Optional[int] = ..., seed: _Optional[int] = ..., positive_prompt: _Optional[str] = ..., negative_prompt: _Optional[str] = ..., dst: _Optional[str] = ..., src: _Optional[str] = ..., EnableParameters: _Optional[str] = ..., CLIPSkip: _Optional[int] = ..., ref_images: _Optional[_Iterable[str]] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class ModelMetadataResponse(_message.Message):
    __slots__ = ("supports_thinking", "rendered_template", "tool_format", "media_marker")
    SUPPORTS_THINKING_FIELD_NUMBER: _ClassVar[int]
    RENDERED_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TOOL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_MARKER_FIELD_NUMBER: _ClassVar[int]
    supports_thinking: bool
    rendered_template: str
    tool_format: ToolFormatMarkers
    media_marker: str
    def __init__(self, supports_thinking: _Optional[bool] = ..., rendered_template: _Optional[str] = ..., tool_format: _Optional[_Union[ToolFormatMarkers, _Mapping]] = ..., media_marker: _Optional[str] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricsResponse(_message.Message):
    __slots__ = ("slot_id", "prompt_json_for_slot", "tokens_per_second", "tokens_generated", "prompt_tokens_processed")
    SLOT_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_JSON_FOR_SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    slot_id: int
    prompt_json_for_slot: str
    tokens_per_second: float
    tokens_generated: int
    prompt_tokens_processed: int
    def __init__(self, slot_id: _Optional[int] = ..., prompt_json_for_slot: _Optional[str] = ..., tokens_per_second: _Optional[float] = ..., tokens_generated: _Optional[int] = ..., prompt_tokens_processed: _Optional[int] = ...) -> None: ...

class TokenClassifyRequest(_message.Message):
    __slots__ = ("text", "threshold", "ModelIdentity")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    text: str
    threshold: float
    ModelIdentity: str
    def __init__(self, text: _Optional[str] = ..., threshold: _Optional[float] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class TokenClassifyEntity(_message.Message):
    __slots__ = ("entity_group", "start", "end", "score", "text")
    ENTITY_GROUP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    entity_group: str
    start: int
    end: int
    score: float
    text: str
    def __init__(self, entity_group: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., score: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class TokenClassifyResponse(_message.Message):
    __slots__ = ("entities",)
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    entities: _containers.RepeatedCompositeFieldContainer[TokenClassifyEntity]
    def __init__(self, entities: _Optional[_Iterable[_Union[TokenClassifyEntity, _Mapping]]] = ...) -> None: ...

class StoresKey(_message.Message):
    __slots__ = ("Floats",)
    FLOATS_FIELD_NUMBER: _ClassVar[int]
    Floats: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, Floats: _Optional[_Iterable[float]] = ...) -> None: ...

class StoresValue(_message.Message):
    __slots__ = ("Bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    Bytes: bytes
    def __init__(self, Bytes: _Optional[bytes] = ...) -> None: ...

class StoresSetOptions(_message.Message):
    __slots__ = ("Keys", "Values")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    Keys: _containers.RepeatedCompositeFieldContainer[StoresKey]
    Values: _containers.RepeatedCompositeFieldContainer[StoresValue]
    def __init__(self, Keys: _Optional[_Iterable[_Union[StoresKey, _Mapping]]] = ..., Values: _Optional[_Iterable[_Union[StoresValue, _Mapping]]] = ...) -> None: ...

class StoresDeleteOptions(_message.Message):
    __slots__ = ("Keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    Keys: _containers.RepeatedCompositeFieldContainer[StoresKey]
    def __init__(self, Keys: _Optional[_Iterable[_Union[StoresKey, _Mapping]]] = ...) -> None: ...

class StoresGetOptions(_message.Message):
    __slots__ = ("Keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    Keys: _containers.RepeatedCompositeFieldContainer[StoresKey]
    def __init__(self, Keys: _Optional[_Iterable[_Union[StoresKey, _Mapping]]] = ...) -> None: ...

class StoresGetResult(_message.Message):
    __slots__ = ("Keys", "Values")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    Keys: _containers.RepeatedCompositeFieldContainer[StoresKey]
    Values: _containers.RepeatedCompositeFieldContainer[StoresValue]
    def __init__(self, Keys: _Optional[_Iterable[_Union[StoresKey, _Mapping]]] = ..., Values: _Optional[_Iterable[_Union[StoresValue, _Mapping]]] = ...) -> None: ...

class StoresFindOptions(_message.Message):
    __slots__ = ("Key", "TopK")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOPK_FIELD_NUMBER: _ClassVar[int]
    Key: StoresKey
    TopK: int
    def __init__(self, Key: _Optional[_Union[StoresKey, _Mapping]] = ..., TopK: _Optional[int] = ...) -> None: ...

class StoresFindResult(_message.Message):
    __slots__ = ("Keys", "Values", "Similarities")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SIMILARITIES_FIELD_NUMBER: _ClassVar[int]
    Keys: _containers.RepeatedCompositeFieldContainer[StoresKey]
    Values: _containers.RepeatedCompositeFieldContainer[StoresValue]
    Similarities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, Keys: _Optional[_Iterable[_Union[StoresKey, _Mapping]]] = ..., Values: _Optional[_Iterable[_Union[StoresValue, _Mapping]]] = ..., Similarities: _Optional[_Iterable[float]] = ...) -> None: ...

class TranscriptLiveRequest(_message.Message):
    __slots__ = ("config", "audio")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    config: TranscriptLiveConfig
    audio: TranscriptLiveAudio
    def __init__(self, config: _Optional[_Union[TranscriptLiveConfig, _Mapping]] = ..., audio: _Optional[_Union[TranscriptLiveAudio, _Mapping]] = ...) -> None: ...

class TranscriptLiveConfig(_message.Message):
    __slots__ = ("language", "sample_rate", "params")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    language: str
    sample_rate: int
    params: _containers.ScalarMap[str, str]
    def __init__(self, language: _Optional[str] = ..., sample_rate: _Optional[int] = ..., params: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TranscriptLiveAudio(_message.Message):
    __slots__ = ("pcm",)
    PCM_FIELD_NUMBER: _ClassVar[int]
    pcm: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, pcm: _Optional[_Iterable[float]] = ...) -> None: ...

class TranscriptLiveResponse(_message.Message):
    __slots__ = ("ready", "delta", "eou", "words", "final_result", "eob")
    READY_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    EOU_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    FINAL_RESULT_FIELD_NUMBER: _ClassVar[int]
    EOB_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    delta: str
    eou: bool
    words: _containers.RepeatedCompositeFieldContainer[TranscriptWord]
    final_result: TranscriptResult
    eob: bool
    def __init__(self, ready: _Optional[bool] = ..., delta: _Optional[str] = ..., eou: _Optional[bool] = ..., words: _Optional[_Iterable[_Union[TranscriptWord, _Mapping]]] = ..., final_result: _Optional[_Union[TranscriptResult, _Mapping]] = ..., eob: _Optional[bool] = ...) -> None: ...

class UpscaleImageRequest(_message.Message):
    __slots__ = ("src", "dst", "scale")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    src: str
    dst: str
    scale: int
    def __init__(self, src: _Optional[str] = ..., dst: _Optional[str] = ..., scale: _Optional[int] = ...) -> None: ...

class GenerateVideoRequest(_message.Message):
    __slots__ = ("prompt", "negative_prompt", "start_image", "end_image", "width", "height", "num_frames", "fps", "seed", "cfg_scale", "step", "dst", "audio", "params", "ModelIdentity")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    START_IMAGE_FIELD_NUMBER: _ClassVar[int]
    END_IMAGE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CFG_SCALE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    negative_prompt: str
    start_image: str
    end_image: str
    width: int
    height: int
    num_frames: int
    fps: int
    seed: int
    cfg_scale: float
    step: int
    dst: str
    audio: str
    params: _containers.ScalarMap[str, str]
    ModelIdentity: str
    def __init__(self, prompt: _Optional[str] = ..., negative_prompt: _Optional[str] = ..., start_image: _Optional[str] = ..., end_image: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., num_frames: _Optional[int] = ..., fps: _Optional[int] = ..., seed: _Optional[int] = ..., cfg_scale: _Optional[float] = ..., step: _Optional[int] = ..., dst: _Optional[str] = ..., audio: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class Generate3DRequest(_message.Message):
    __slots__ = ("src", "dst", "seed", "step", "cfg_scale", "texture_steps", "quality", "background", "params")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CFG_SCALE_FIELD_NUMBER: _ClassVar[int]
    TEXTURE_STEPS_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    src: str
    dst: str
    seed: int
    step: int
    cfg_scale: float
    texture_steps: int
    quality: str
    background: str
    params: _containers.ScalarMap[str, str]
    def __init__(self, src: _Optional[str] = ..., dst: _Optional[str] = ..., seed: _Optional[int] = ..., step: _Optional[int] = ..., cfg_scale: _Optional[float] = ..., texture_steps: _Optional[int] = ..., quality: _Optional[str] = ..., background: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DiarizeRequest(_message.Message):
    __slots__ = ("dst", "threads", "language", "num_speakers", "min_speakers", "max_speakers", "clustering_threshold", "min_duration_on", "min_duration_off", "include_text", "ModelIdentity")
    DST_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_SPEAKERS_FIELD_NUMBER: _ClassVar[int]
    MIN_SPEAKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_SPEAKERS_FIELD_NUMBER: _ClassVar[int]
    CLUSTERING_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_ON_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_OFF_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TEXT_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    dst: str
    threads: int
    language: str
    num_speakers: int
    min_speakers: int
    max_speakers: int
    clustering_threshold: float
    min_duration_on: float
    min_duration_off: float
    include_text: bool
    ModelIdentity: str
    def __init__(self, dst: _Optional[str] = ..., threads: _Optional[int] = ..., language: _Optional[str] = ..., num_speakers: _Optional[int] = ..., min_speakers: _Optional[int] = ..., max_speakers: _Optional[int] = ..., clustering_threshold: _Optional[float] = ..., min_duration_on: _Optional[float] = ..., min_duration_off: _Optional[float] = ..., include_text: _Optional[bool] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class DiarizeSegment(_message.Message):
    __slots__ = ("id", "start", "end", "speaker", "text")
    ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    id: int
    start: float
    end: float
    speaker: str
    text: str
    def __init__(self, id: _Optional[int] = ..., start: _Optional[float] = ..., end: _Optional[float] = ..., speaker: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class DiarizeResponse(_message.Message):
    __slots__ = ("segments", "num_speakers", "duration", "language")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SPEAKERS_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[DiarizeSegment]
    num_speakers: int
    duration: float
    language: str
    def __init__(self, segments: _Optional[_Iterable[_Union[DiarizeSegment, _Mapping]]] = ..., num_speakers: _Optional[int] = ..., duration: _Optional[float] = ..., language: _Optional[str] = ...) -> None: ...

class DetectOptions(_message.Message):
    __slots__ = ("src", "prompt", "points", "boxes", "threshold", "ModelIdentity")
    SRC_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    BOXES_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    src: str
    prompt: str
    points: _containers.RepeatedScalarFieldContainer[float]
    boxes: _containers.RepeatedScalarFieldContainer[float]
    threshold: float
    ModelIdentity: str
    def __init__(self, src: _Optional[str] = ..., prompt: _Optional[str] = ..., points: _Optional[_Iterable[float]] = ..., boxes: _Optional[_Iterable[float]] = ..., threshold: _Optional[float] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class Detection(_message.Message):
    __slots__ = ("x", "y", "width", "height", "confidence", "class_name", "mask")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    x: float
    y: float
    width: float
    height: float
    confidence: float
    class_name: str
    mask: bytes
    def __init__(self, x: _Optional[float] = ..., y: _Optional[float] = ..., width: _Optional[float] = ..., height: _Optional[float] = ..., confidence: _Optional[float] = ..., class_name: _Optional[str] = ..., mask: _Optional[bytes] = ...) -> None: ...

class DetectResponse(_message.Message):
    __slots__ = ("Detections",)
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    Detections: _containers.RepeatedCompositeFieldContainer[Detection]
    def __init__(self, Detections: _Optional[_Iterable[_Union[Detection, _Mapping]]] = ...) -> None: ...

class SoundDetectionRequest(_message.Message):
    __slots__ = ("src", "top_k", "threshold", "ModelIdentity")
    SRC_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    src: str
    top_k: int
    threshold: float
    ModelIdentity: str
    def __init__(self, src: _Optional[str] = ..., top_k: _Optional[int] = ..., threshold: _Optional[float] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class SoundClass(_message.Message):
    __slots__ = ("label", "score", "index")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    index: int
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ..., index: _Optional[int] = ...) -> None: ...

class SoundDetectionResponse(_message.Message):
    __slots__ = ("detections",)
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    detections: _containers.RepeatedCompositeFieldContainer[SoundClass]
    def __init__(self, detections: _Optional[_Iterable[_Union[SoundClass, _Mapping]]] = ...) -> None: ...

class DepthRequest(_message.Message):
    __slots__ = ("src", "dst", "include_depth", "include_confidence", "include_pose", "include_sky", "include_points", "points_conf_thresh", "exports", "ModelIdentity")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_POSE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SKY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_POINTS_FIELD_NUMBER: _ClassVar[int]
    POINTS_CONF_THRESH_FIELD_NUMBER: _ClassVar[int]
    EXPORTS_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    src: str
    dst: str
    include_depth: bool
    include_confidence: bool
    include_pose: bool
    include_sky: bool
    include_points: bool
    points_conf_thresh: float
    exports: _containers.RepeatedScalarFieldContainer[str]
    ModelIdentity: str
    def __init__(self, src: _Optional[str] = ..., dst: _Optional[str] = ..., include_depth: _Optional[bool] = ..., include_confidence: _Optional[bool] = ..., include_pose: _Optional[bool] = ..., include_sky: _Optional[bool] = ..., include_points: _Optional[bool] = ..., points_conf_thresh: _Optional[float] = ..., exports: _Optional[_Iterable[str]] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class DepthResponse(_message.Message):
    __slots__ = ("width", "height", "depth", "confidence", "sky", "extrinsics", "intrinsics", "num_points", "points", "point_colors", "export_paths", "is_metric")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    SKY_FIELD_NUMBER: _ClassVar[int]
    EXTRINSICS_FIELD_NUMBER: _ClassVar[int]
    INTRINSICS_FIELD_NUMBER: _ClassVar[int]
    NUM_POINTS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    POINT_COLORS_FIELD_NUMBER: _ClassVar[int]
    EXPORT_PATHS_FIELD_NUMBER: _ClassVar[int]
    IS_METRIC_FIELD_NUMBER: _ClassVar[int]
    width: int
    height: int
    depth: _containers.RepeatedScalarFieldContainer[float]
    confidence: _containers.RepeatedScalarFieldContainer[float]
    sky: _containers.RepeatedScalarFieldContainer[float]
    extrinsics: _containers.RepeatedScalarFieldContainer[float]
    intrinsics: _containers.RepeatedScalarFieldContainer[float]
    num_points: int
    points: _containers.RepeatedScalarFieldContainer[float]
    point_colors: bytes
    export_paths: _containers.RepeatedScalarFieldContainer[str]
    is_metric: bool
    def __init__(self, width: _Optional[int] = ..., height: _Optional[int] = ..., depth: _Optional[_Iterable[float]] = ..., confidence: _Optional[_Iterable[float]] = ..., sky: _Optional[_Iterable[float]] = ..., extrinsics: _Optional[_Iterable[float]] = ..., intrinsics: _Optional[_Iterable[float]] = ..., num_points: _Optional[int] = ..., points: _Optional[_Iterable[float]] = ..., point_colors: _Optional[bytes] = ..., export_paths: _Optional[_Iterable[str]] = ..., is_metric: _Optional[bool] = ...) -> None: ...

class FacialArea(_message.Message):
    __slots__ = ("x", "y", "w", "h")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    W_FIELD_NUMBER: _ClassVar[int]
    H_FIELD_NUMBER: _ClassVar[int]
    x: float
    y: float
    w: float
    h: float
    def __init__(self, x: _Optional[float] = ..., y: _Optional[float] = ..., w: _Optional[float] = ..., h: _Optional[float] = ...) -> None: ...

class FaceVerifyRequest(_message.Message):
    __slots__ = ("img1", "img2", "threshold", "anti_spoofing", "ModelIdentity")
    IMG1_FIELD_NUMBER: _ClassVar[int]
    IMG2_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ANTI_SPOOFING_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    img1: str
    img2: str
    threshold: float
    anti_spoofing: bool
    ModelIdentity: str
    def __init__(self, img1: _Optional[str] = ..., img2: _Optional[str] = ..., threshold: _Optional[float] = ..., anti_spoofing: _Optional[bool] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class FaceVerifyResponse(_message.Message):
    __slots__ = ("verified", "distance", "threshold", "confidence", "model", "img1_area", "img2_area", "processing_time_ms", "img1_is_real", "img1_antispoof_score", "img2_is_real", "img2_antispoof_score")
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMG1_AREA_FIELD_NUMBER: _ClassVar[int]
    IMG2_AREA_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    IMG1_IS_REAL_FIELD_NUMBER: _ClassVar[int]
    IMG1_ANTISPOOF_SCORE_FIELD_NUMBER: _ClassVar[int]
    IMG2_IS_REAL_FIELD_NUMBER: _ClassVar[int]
    IMG2_ANTISPOOF_SCORE_FIELD_NUMBER: _ClassVar[int]
    verified: bool
    distance: float
    threshold: float
    confidence: float
    model: str
    img1_area: FacialArea
    img2_area: FacialArea
    processing_time_ms: float
    img1_is_real: bool
    img1_antispoof_score: float
    img2_is_real: bool
    img2_antispoof_score: float
    def __init__(self, verified: _Optional[bool] = ..., distance: _Optional[float] = ..., threshold: _Optional[float] = ..., confidence: _Optional[float] = ..., model: _Optional[str] = ..., img1_area: _Optional[_Union[FacialArea, _Mapping]] = ..., img2_area: _Optional[_Union[FacialArea, _Mapping]] = ..., processing_time_ms: _Optional[float] = ..., img1_is_real: _Optional[bool] = ..., img1_antispoof_score: _Optional[float] = ..., img2_is_real: _Optional[bool] = ..., img2_antispoof_score: _Optional[float] = ...) -> None: ...

class FaceAnalyzeRequest(_message.Message):
    __slots__ = ("img", "actions", "anti_spoofing", "ModelIdentity")
    IMG_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    ANTI_SPOOFING_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    img: str
    actions: _containers.RepeatedScalarFieldContainer[str]
    anti_spoofing: bool
    ModelIdentity: str
    def __init__(self, img: _Optional[str] = ..., actions: _Optional[_Iterable[str]] = ..., anti_spoofing: _Optional[bool] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class FaceAnalysis(_message.Message):
    __slots__ = ("region", "face_confidence", "age", "dominant_gender", "gender", "dominant_emotion", "emotion", "dominant_race", "race", "is_real", "antispoof_score")
    class GenderEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class EmotionEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class RaceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REGION_FIELD_NUMBER: _ClassVar[int]
    FACE_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    DOMINANT_GENDER_FIELD_NUMBER: _ClassVar[int]
    GENDER_FIELD_NUMBER: _ClassVar[int]
    DOMINANT_EMOTION_FIELD_NUMBER: _ClassVar[int]
    EMOTION_FIELD_NUMBER: _ClassVar[int]
    DOMINANT_RACE_FIELD_NUMBER: _ClassVar[int]
    RACE_FIELD_NUMBER: _ClassVar[int]
    IS_REAL_FIELD_NUMBER: _ClassVar[int]
    ANTISPOOF_SCORE_FIELD_NUMBER: _ClassVar[int]
    region: FacialArea
    face_confidence: float
    age: float
    dominant_gender: str
    gender: _containers.ScalarMap[str, float]
    dominant_emotion: str
    emotion: _containers.ScalarMap[str, float]
    dominant_race: str
    race: _containers.ScalarMap[str, float]
    is_real: bool
    antispoof_score: float
    def __init__(self, region: _Optional[_Union[FacialArea, _Mapping]] = ..., face_confidence: _Optional[float] = ..., age: _Optional[float] = ..., dominant_gender: _Optional[str] = ..., gender: _Optional[_Mapping[str, float]] = ..., dominant_emotion: _Optional[str] = ..., emotion: _Optional[_Mapping[str, float]] = ..., dominant_race: _Optional[str] = ..., race: _Optional[_Mapping[str, float]] = ..., is_real: _Optional[bool] = ..., antispoof_score: _Optional[float] = ...) -> None: ...

class FaceAnalyzeResponse(_message.Message):
    __slots__ = ("faces",)
    FACES_FIELD_NUMBER: _ClassVar[int]
    faces: _containers.RepeatedCompositeFieldContainer[FaceAnalysis]
    def __init__(self, faces: _Optional[_Iterable[_Union[FaceAnalysis, _Mapping]]] = ...) -> None: ...

class VoiceVerifyRequest(_message.Message):
    __slots__ = ("audio1", "audio2", "threshold", "anti_spoofing", "ModelIdentity")
    AUDIO1_FIELD_NUMBER: _ClassVar[int]
    AUDIO2_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ANTI_SPOOFING_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    audio1: str
    audio2: str
    threshold: float
    anti_spoofing: bool
    ModelIdentity: str
    def __init__(self, audio1: _Optional[str] = ..., audio2: _Optional[str] = ..., threshold: _Optional[float] = ..., anti_spoofing: _Optional[bool] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class VoiceVerifyResponse(_message.Message):
    __slots__ = ("verified", "distance", "threshold", "confidence", "model", "processing_time_ms")
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    verified: bool
    distance: float
    threshold: float
    confidence: float
    model: str
    processing_time_ms: float
    def __init__(self, verified: _Optional[bool] = ..., distance: _Optional[float] = ..., threshold: _Optional[float] = ..., confidence: _Optional[float] = ..., model: _Optional[str] = ..., processing_time_ms: _Optional[float] = ...) -> None: ...

class VoiceAnalyzeRequest(_message.Message):
    __slots__ = ("audio", "actions", "ModelIdentity")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    audio: str
    actions: _containers.RepeatedScalarFieldContainer[str]
    ModelIdentity: str
    def __init__(self, audio: _Optional[str] = ..., actions: _Optional[_Iterable[str]] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class VoiceAnalysis(_message.Message):
    __slots__ = ("start", "end", "age", "dominant_gender", "gender", "dominant_emotion", "emotion")
    class GenderEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class EmotionEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    DOMINANT_GENDER_FIELD_NUMBER: _ClassVar[int]
    GENDER_FIELD_NUMBER: _ClassVar[int]
    DOMINANT_EMOTION_FIELD_NUMBER: _ClassVar[int]
    EMOTION_FIELD_NUMBER: _ClassVar[int]
    start: float
    end: float
    age: float
    dominant_gender: str
    gender: _containers.ScalarMap[str, float]
    dominant_emotion: str
    emotion: _containers.ScalarMap[str, float]
    def __init__(self, start: _Optional[float] = ..., end: _Optional[float] = ..., age: _Optional[float] = ..., dominant_gender: _Optional[str] = ..., gender: _Optional[_Mapping[str, float]] = ..., dominant_emotion: _Optional[str] = ..., emotion: _Optional[_Mapping[str, float]] = ...) -> None: ...

class VoiceAnalyzeResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[VoiceAnalysis]
    def __init__(self, segments: _Optional[_Iterable[_Union[VoiceAnalysis, _Mapping]]] = ...) -> None: ...

class VoiceEmbedRequest(_message.Message):
    __slots__ = ("audio", "ModelIdentity")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    audio: str
    ModelIdentity: str
    def __init__(self, audio: _Optional[str] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class VoiceEmbedResponse(_message.Message):
    __slots__ = ("embedding", "model")
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    embedding: _containers.RepeatedScalarFieldContainer[float]
    model: str
    def __init__(self, embedding: _Optional[_Iterable[float]] = ..., model: _Optional[str] = ...) -> None: ...

class ToolFormatMarkers(_message.Message):
    __slots__ = ("format_type", "section_start", "section_end", "per_call_start", "per_call_end", "func_name_prefix", "func_name_suffix", "func_close", "arg_name_prefix", "arg_name_suffix", "arg_value_prefix", "arg_value_suffix", "arg_separator", "name_field", "args_field", "id_field", "fun_name_is_key", "tools_array_wrapped", "reasoning_start", "reasoning_end", "content_start", "content_end", "args_start", "args_end", "function_field", "parameter_order", "gen_id_field", "call_id_position", "call_id_prefix", "call_id_suffix")
    FORMAT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SECTION_START_FIELD_NUMBER: _ClassVar[int]
    SECTION_END_FIELD_NUMBER: _ClassVar[int]
    PER_CALL_START_FIELD_NUMBER: _ClassVar[int]
    PER_CALL_END_FIELD_NUMBER: _ClassVar[int]
    FUNC_NAME_PREFIX_FIELD_NUMBER: _ClassVar[int]
    FUNC_NAME_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    FUNC_CLOSE_FIELD_NUMBER: _ClassVar[int]
    ARG_NAME_PREFIX_FIELD_NUMBER: _ClassVar[int]
    ARG_NAME_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    ARG_VALUE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    ARG_VALUE_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    ARG_SEPARATOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    FUN_NAME_IS_KEY_FIELD_NUMBER: _ClassVar[int]
    TOOLS_ARRAY_WRAPPED_FIELD_NUMBER: _ClassVar[int]
    REASONING_START_FIELD_NUMBER: _ClassVar[int]
    REASONING_END_FIELD_NUMBER: _ClassVar[int]
    CONTENT_START_FIELD_NUMBER: _ClassVar[int]
    CONTENT_END_FIELD_NUMBER: _ClassVar[int]
    ARGS_START_FIELD_NUMBER: _ClassVar[int]
    ARGS_END_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_ORDER_FIELD_NUMBER: _ClassVar[int]
    GEN_ID_FIELD_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_POSITION_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_SUFFIX_FIELD_NUMBER: _ClassVar[int]
    format_type: str
    section_start: str
    section_end: str
    per_call_start: str
    per_call_end: str
    func_name_prefix: str
    func_name_suffix: str
    func_close: str
    arg_name_prefix: str
    arg_name_suffix: str
    arg_value_prefix: str
    arg_value_suffix: str
    arg_separator: str
    name_field: str
    args_field: str
    id_field: str
    fun_name_is_key: bool
    tools_array_wrapped: bool
    reasoning_start: str
    reasoning_end: str
    content_start: str
    content_end: str
    args_start: str
    args_end: str
    function_field: str
    parameter_order: _containers.RepeatedScalarFieldContainer[str]
    gen_id_field: str
    call_id_position: str
    call_id_prefix: str
    call_id_suffix: str
    def __init__(self, format_type: _Optional[str] = ..., section_start: _Optional[str] = ..., section_end: _Optional[str] = ..., per_call_start: _Optional[str] = ..., per_call_end: _Optional[str] = ..., func_name_prefix: _Optional[str] = ..., func_name_suffix: _Optional[str] = ..., func_close: _Optional[str] = ..., arg_name_prefix: _Optional[str] = ..., arg_name_suffix: _Optional[str] = ..., arg_value_prefix: _Optional[str] = ..., arg_value_suffix: _Optional[str] = ..., arg_separator: _Optional[str] = ..., name_field: _Optional[str] = ..., args_field: _Optional[str] = ..., id_field: _Optional[str] = ..., fun_name_is_key: _Optional[bool] = ..., tools_array_wrapped: _Optional[bool] = ..., reasoning_start: _Optional[str] = ..., reasoning_end: _Optional[str] = ..., content_start: _Optional[str] = ..., content_end: _Optional[str] = ..., args_start: _Optional[str] = ..., args_end: _Optional[str] = ..., function_field: _Optional[str] = ..., parameter_order: _Optional[_Iterable[str]] = ..., gen_id_field: _Optional[str] = ..., call_id_position: _Optional[str] = ..., call_id_prefix: _Optional[str] = ..., call_id_suffix: _Optional[str] = ...) -> None: ...

class AudioEncodeRequest(_message.Message):
    __slots__ = ("pcm_data", "sample_rate", "channels", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PCM_DATA_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    pcm_data: bytes
    sample_rate: int
    channels: int
    options: _containers.ScalarMap[str, str]
    def __init__(self, pcm_data: _Optional[bytes] = ..., sample_rate: _Optional[int] = ..., channels: _Optional[int] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AudioEncodeResult(_message.Message):
    __slots__ = ("frames", "sample_rate", "samples_per_frame")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_FRAME_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    sample_rate: int
    samples_per_frame: int
    def __init__(self, frames: _Optional[_Iterable[bytes]] = ..., sample_rate: _Optional[int] = ..., samples_per_frame: _Optional[int] = ...) -> None: ...

class AudioDecodeRequest(_message.Message):
    __slots__ = ("frames", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    options: _containers.ScalarMap[str, str]
    def __init__(self, frames: _Optional[_Iterable[bytes]] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AudioDecodeResult(_message.Message):
    __slots__ = ("pcm_data", "sample_rate", "samples_per_frame")
    PCM_DATA_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_FRAME_FIELD_NUMBER: _ClassVar[int]
    pcm_data: bytes
    sample_rate: int
    samples_per_frame: int
    def __init__(self, pcm_data: _Optional[bytes] = ..., sample_rate: _Optional[int] = ..., samples_per_frame: _Optional[int] = ...) -> None: ...

class AudioTransformRequest(_message.Message):
    __slots__ = ("audio_path", "reference_path", "dst", "params", "ModelIdentity")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AUDIO_PATH_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_PATH_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    MODELIDENTITY_FIELD_NUMBER: _ClassVar[int]
    audio_path: str
    reference_path: str
    dst: str
    params: _containers.ScalarMap[str, str]
    ModelIdentity: str
    def __init__(self, audio_path: _Optional[str] = ..., reference_path: _Optional[str] = ..., dst: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., ModelIdentity: _Optional[str] = ...) -> None: ...

class AudioTransformStem(_message.Message):
    __slots__ = ("name", "dst")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    name: str
    dst: str
    def __init__(self, name: _Optional[str] = ..., dst: _Optional[str] = ...) -> None: ...

class AudioTransformResult(_message.Message):
    __slots__ = ("dst", "sample_rate", "samples", "reference_provided", "stems")
    DST_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_PROVIDED_FIELD_NUMBER: _ClassVar[int]
    STEMS_FIELD_NUMBER: _ClassVar[int]
    dst: str
    sample_rate: int
    samples: int
    reference_provided: bool
    stems: _containers.RepeatedCompositeFieldContainer[AudioTransformStem]
    def __init__(self, dst: _Optional[str] = ..., sample_rate: _Optional[int] = ..., samples: _Optional[int] = ..., reference_provided: _Optional[bool] = ..., stems: _Optional[_Iterable[_Union[AudioTransformStem, _Mapping]]] = ...) -> None: ...

class AudioTransformFrameRequest(_message.Message):
    __slots__ = ("config", "frame")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    config: AudioTransformStreamConfig
    frame: AudioTransformFrame
    def __init__(self, config: _Optional[_Union[AudioTransformStreamConfig, _Mapping]] = ..., frame: _Optional[_Union[AudioTransformFrame, _Mapping]] = ...) -> None: ...

class AudioTransformStreamConfig(_message.Message):
    __slots__ = ("sample_format", "sample_rate", "frame_samples", "params", "reset")
    class SampleFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        F32_LE: _ClassVar[AudioTransformStreamConfig.SampleFormat]
        S16_LE: _ClassVar[AudioTransformStreamConfig.SampleFormat]
    F32_LE: AudioTransformStreamConfig.SampleFormat
    S16_LE: AudioTransformStreamConfig.SampleFormat
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SAMPLE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    FRAME_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    sample_format: AudioTransformStreamConfig.SampleFormat
    sample_rate: int
    frame_samples: int
    params: _containers.ScalarMap[str, str]
    reset: bool
    def __init__(self, sample_format: _Optional[_Union[AudioTransformStreamConfig.SampleFormat, str]] = ..., sample_rate: _Optional[int] = ..., frame_samples: _Optional[int] = ..., params: _Optional[_Mapping[str, str]] = ..., reset: _Optional[bool] = ...) -> None: ...

class AudioTransformFrame(_message.Message):
    __slots__ = ("audio_pcm", "reference_pcm")
    AUDIO_PCM_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_PCM_FIELD_NUMBER: _ClassVar[int]
    audio_pcm: bytes
    reference_pcm: bytes
    def __init__(self, audio_pcm: _Optional[bytes] = ..., reference_pcm: _Optional[bytes] = ...) -> None: ...

class AudioTransformFrameResponse(_message.Message):
    __slots__ = ("pcm", "frame_index")
    PCM_FIELD_NUMBER: _ClassVar[int]
    FRAME_INDEX_FIELD_NUMBER: _ClassVar[int]
    pcm: bytes
    frame_index: int
    def __init__(self, pcm: _Optional[bytes] = ..., frame_index: _Optional[int] = ...) -> None: ...

class AudioToAudioRequest(_message.Message):
    __slots__ = ("config", "frame", "control")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    config: AudioToAudioConfig
    frame: AudioToAudioFrame
    control: AudioToAudioControl
    def __init__(self, config: _Optional[_Union[AudioToAudioConfig, _Mapping]] = ..., frame: _Optional[_Union[AudioToAudioFrame, _Mapping]] = ..., control: _Optional[_Union[AudioToAudioControl, _Mapping]] = ...) -> None: ...

class AudioToAudioConfig(_message.Message):
    __slots__ = ("input_sample_rate", "output_sample_rate", "system_prompt", "voice", "tools", "params", "reset")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    INPUT_SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    input_sample_rate: int
    output_sample_rate: int
    system_prompt: str
    voice: str
    tools: str
    params: _containers.ScalarMap[str, str]
    reset: bool
    def __init__(self, input_sample_rate: _Optional[int] = ..., output_sample_rate: _Optional[int] = ..., system_prompt: _Optional[str] = ..., voice: _Optional[str] = ..., tools: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., reset: _Optional[bool] = ...) -> None: ...

class AudioToAudioFrame(_message.Message):
    __slots__ = ("pcm", "end_of_input")
    PCM_FIELD_NUMBER: _ClassVar[int]
    END_OF_INPUT_FIELD_NUMBER: _ClassVar[int]
    pcm: bytes
    end_of_input: bool
    def __init__(self, pcm: _Optional[bytes] = ..., end_of_input: _Optional[bool] = ...) -> None: ...

class AudioToAudioControl(_message.Message):
    __slots__ = ("event", "payload")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    event: str
    payload: bytes
    def __init__(self, event: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class AudioToAudioResponse(_message.Message):
    __slots__ = ("event", "pcm", "sample_rate", "meta", "sequence")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    PCM_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    event: str
    pcm: bytes
    sample_rate: int
    meta: bytes
    sequence: int
    def __init__(self, event: _Optional[str] = ..., pcm: _Optional[bytes] = ..., sample_rate: _Optional[int] = ..., meta: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class FineTuneRequest(_message.Message):
    __slots__ = ("model", "training_type", "training_method", "adapter_rank", "adapter_alpha", "adapter_dropout", "target_modules", "learning_rate", "num_epochs", "batch_size", "gradient_accumulation_steps", "warmup_steps", "max_steps", "save_steps", "weight_decay", "gradient_checkpointing", "optimizer", "seed", "mixed_precision", "dataset_source", "dataset_split", "output_dir", "job_id", "resume_from_checkpoint", "extra_options")
    class ExtraOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRAINING_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_METHOD_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_RANK_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_ALPHA_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_DROPOUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    NUM_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_ACCUMULATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAVE_STEPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CHECKPOINTING_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIXED_PRECISION_FIELD_NUMBER: _ClassVar[int]
    DATASET_SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATASET_SPLIT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DIR_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    training_type: str
    training_method: str
    adapter_rank: int
    adapter_alpha: int
    adapter_dropout: float
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    learning_rate: float
    num_epochs: int
    batch_size: int
    gradient_accumulation_steps: int
    warmup_steps: int
    max_steps: int
    save_steps: int
    weight_decay: float
    gradient_checkpointing: bool
    optimizer: str
    seed: int
    mixed_precision: str
    dataset_source: str
    dataset_split: str
    output_dir: str
    job_id: str
    resume_from_checkpoint: str
    extra_options: _containers.ScalarMap[str, str]
    def __init__(self, model: _Optional[str] = ..., training_type: _Optional[str] = ..., training_method: _Optional[str] = ..., adapter_rank: _Optional[int] = ..., adapter_alpha: _Optional[int] = ..., adapter_dropout: _Optional[float] = ..., target_modules: _Optional[_Iterable[str]] = ..., learning_rate: _Optional[float] = ..., num_epochs: _Optional[int] = ..., batch_size: _Optional[int] = ..., gradient_accumulation_steps: _Optional[int] = ..., warmup_steps: _Optional[int] = ..., max_steps: _Optional[int] = ..., save_steps: _Optional[int] = ..., weight_decay: _Optional[float] = ..., gradient_checkpointing: _Optional[bool] = ..., optimizer: _Optional[str] = ..., seed: _Optional[int] = ..., mixed_precision: _Optional[str] = ..., dataset_source: _Optional[str] = ..., dataset_split: _Optional[str] = ..., output_dir: _Optional[str] = ..., job_id: _Optional[str] = ..., resume_from_checkpoint: _Optional[str] = ..., extra_options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class FineTuneJobResult(_message.Message):
    __slots__ = ("job_id", "success", "message")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    success: bool
    message: str
    def __init__(self, job_id: _Optional[str] = ..., success: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class FineTuneProgressRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class FineTuneProgressUpdate(_message.Message):
    __slots__ = ("job_id", "current_step", "total_steps", "current_epoch", "total_epochs", "loss", "learning_rate", "grad_norm", "eval_loss", "eta_seconds", "progress_percent", "status", "message", "checkpoint_path", "sample_path", "extra_metrics")
    class ExtraMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CURRENT_STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    EVAL_LOSS_FIELD_NUMBER: _ClassVar[int]
    ETA_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_PERCENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_PATH_FIELD_NUMBER: _ClassVar[int]
    EXTRA_METRICS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    current_step: int
    total_steps: int
    current_epoch: float
    total_epochs: float
    loss: float
    learning_rate: float
    grad_norm: float
    eval_loss: float
    eta_seconds: float
    progress_percent: float
    status: str
    message: str
    checkpoint_path: str
    sample_path: str
    extra_metrics: _containers.ScalarMap[str, float]
    def __init__(self, job_id: _Optional[str] = ..., current_step: _Optional[int] = ..., total_steps: _Optional[int] = ..., current_epoch: _Optional[float] = ..., total_epochs: _Optional[float] = ..., loss: _Optional[float] = ..., learning_rate: _Optional[float] = ..., grad_norm: _Optional[float] = ..., eval_loss: _Optional[float] = ..., eta_seconds: _Optional[float] = ..., progress_percent: _Optional[float] = ..., status: _Optional[str] = ..., message: _Optional[str] = ..., checkpoint_path: _Optional[str] = ..., sample_path: _Optional[str] = ..., extra_metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class FineTuneStopRequest(_message.Message):
    __slots__ = ("job_id", "save_checkpoint")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    save_checkpoint: bool
    def __init__(self, job_id: _Optional[str] = ..., save_checkpoint: _Optional[bool] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("output_dir",)
    OUTPUT_DIR_FIELD_NUMBER: _ClassVar[int]
    output_dir: str
    def __init__(self, output_dir: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints",)
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointInfo]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CheckpointInfo, _Mapping]]] = ...) -> None: ...

class CheckpointInfo(_message.Message):
    __slots__ = ("path", "step", "epoch", "loss", "created_at")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    path: str
    step: int
    epoch: float
    loss: float
    created_at: str
    def __init__(self, path: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[float] = ..., loss: _Optional[float] = ..., created_at: _Optional[str] = ...) -> None: ...

class ExportModelRequest(_message.Message):
    __slots__ = ("checkpoint_path", "output_path", "export_format", "quantization_method", "model", "extra_options")
    class ExtraOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_METHOD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EXTRA_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    checkpoint_path: str
    output_path: str
    export_format: str
    quantization_method: str
    model: str
    extra_options: _containers.ScalarMap[str, str]
    def __init__(self, checkpoint_path: _Optional[str] = ..., output_path: _Optional[str] = ..., export_format: _Optional[str] = ..., quantization_method: _Optional[str] = ..., model: _Optional[str] = ..., extra_options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class QuantizationRequest(_message.Message):
    __slots__ = ("model", "quantization_type", "output_dir", "job_id", "extra_options")
    class ExtraOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_TYPE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DIR_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EXTRA_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    quantization_type: str
    output_dir: str
    job_id: str
    extra_options: _containers.ScalarMap[str, str]
    def __init__(self, model: _Optional[str] = ..., quantization_type: _Optional[str] = ..., output_dir: _Optional[str] = ..., job_id: _Optional[str] = ..., extra_options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class QuantizationJobResult(_message.Message):
    __slots__ = ("job_id", "success", "message")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    success: bool
    message: str
    def __init__(self, job_id: _Optional[str] = ..., success: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class QuantizationProgressRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class QuantizationProgressUpdate(_message.Message):
    __slots__ = ("job_id", "progress_percent", "status", "message", "output_file", "extra_metrics")
    class ExtraMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_PERCENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FILE_FIELD_NUMBER: _ClassVar[int]
    EXTRA_METRICS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    progress_percent: float
    status: str
    message: str
    output_file: str
    extra_metrics: _containers.ScalarMap[str, float]
    def __init__(self, job_id: _Optional[str] = ..., progress_percent: _Optional[float] = ..., status: _Optional[str] = ..., message: _Optional[str] = ..., output_file: _Optional[str] = ..., extra_metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class QuantizationStopRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ForwardHeader(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ForwardRequest(_message.Message):
    __slots__ = ("path", "method", "headers", "body_chunk")
    PATH_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_CHUNK_FIELD_NUMBER: _ClassVar[int]
    path: str
    method: str
    headers: _containers.RepeatedCompositeFieldContainer[ForwardHeader]
    body_chunk: bytes
    def __init__(self, path: _Optional[str] = ..., method: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[ForwardHeader, _Mapping]]] = ..., body_chunk: _Optional[bytes] = ...) -> None: ...

class ForwardReply(_message.Message):
    __slots__ = ("status", "headers", "body_chunk")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_CHUNK_FIELD_NUMBER: _ClassVar[int]
    status: int
    headers: _containers.RepeatedCompositeFieldContainer[ForwardHeader]
    body_chunk: bytes
    def __init__(self, status: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[ForwardHeader, _Mapping]]] = ..., body_chunk: _Optional[bytes] = ...) -> None: ...
