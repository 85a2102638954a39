//! Shapes of transformers from their published `config.json`, also with experts.

/// A decoder-only transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Name.
    pub name: &'static str,
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the MLP, or of one expert.
    pub intermediate: u64,
    /// Q heads.
    pub heads: u64,
    /// K and V heads.
    pub kv_heads: u64,
    /// Values per head.
    pub head_dim: u64,
    /// Tokens of the vocabulary.
    pub vocabulary: u64,
    /// Matrices of an MLP: 3 with a gate, else 2.
    pub mlp_matrices: u64,
    /// Experts of a layer; 1: dense.
    pub experts: u64,
    /// Experts that a token uses.
    pub experts_used: u64,
    /// Whether embedding and output share their weights.
    pub is_tied: bool,
    /// Bytes per weight.
    pub weight_bytes: u64,
    /// Bytes per value of K or V.
    pub kv_element_bytes: u64,
    /// Latest tokens that a token attends to. `None`: all.
    pub window_tokens: Option<u32>,
}

impl Architecture {
    /// A dense Llama-like model: layers, width, MLP, heads, KV heads, vocabulary; heads of 128 values,
    /// 16-bit weights and KV.
    #[must_use]
    pub const fn dense(name: &'static str, shape: [u64; 5], vocabulary: u64) -> Self {
        let [layers, hidden, intermediate, heads, kv_heads] = shape;
        Self {
            name,
            layers,
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim: 128,
            vocabulary,
            mlp_matrices: 3,
            experts: 1,
            experts_used: 1,
            is_tied: false,
            weight_bytes: 2,
            kv_element_bytes: 2,
            window_tokens: None,
        }
    }

    /// With 8-bit weights.
    #[must_use]
    pub const fn int8(mut self) -> Self {
        self.weight_bytes = 1;
        self
    }

    /// With heads of `values` values.
    #[must_use]
    pub const fn head_dim(mut self, values: u64) -> Self {
        self.head_dim = values;
        self
    }

    /// With `experts`, of which a token uses `used`.
    #[must_use]
    pub const fn experts(mut self, experts: u64, used: u64) -> Self {
        self.experts = experts;
        self.experts_used = used;
        self
    }

    /// With two matrices per MLP, and one of embedding and output.
    #[must_use]
    pub const fn gpt(mut self) -> Self {
        self.mlp_matrices = 2;
        self.is_tied = true;
        self
    }

    /// With attention to the latest `tokens` tokens only.
    #[must_use]
    pub const fn window(mut self, tokens: u32) -> Self {
        self.window_tokens = Some(tokens);
        self
    }

    /// With one matrix of embedding and output.
    #[must_use]
    pub const fn tied(mut self) -> Self {
        self.is_tied = true;
        self
    }

    /// Weights of a layer's attention.
    #[must_use]
    pub const fn attention_weights(&self) -> u64 {
        2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
    }

    /// Weights of one MLP or expert.
    #[must_use]
    pub const fn expert_weights(&self) -> u64 {
        self.mlp_matrices * self.hidden * self.intermediate
    }

    /// All weights.
    #[must_use]
    pub const fn parameters(&self) -> u64 {
        let embedding = self.vocabulary * self.hidden * if self.is_tied { 1 } else { 2 };
        self.layers * (self.attention_weights() + self.experts * self.expert_weights()) + embedding
    }

    /// Weights that a token is multiplied with.
    #[must_use]
    pub const fn active_parameters(&self) -> u64 {
        self.layers * (self.attention_weights() + self.experts_used * self.expert_weights())
            + self.vocabulary * self.hidden
    }

    /// Bytes of all weights.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.parameters() * self.weight_bytes
    }

    /// Bytes of K and V of a token in all layers.
    #[must_use]
    pub const fn kv_bytes_per_token(&self) -> u64 {
        2 * self.layers * self.kv_heads * self.head_dim * self.kv_element_bytes
    }

    /// Expected experts of a layer that `tokens` tokens use, if each uses random ones.
    #[must_use]
    pub fn experts_read(&self, tokens: f64) -> f64 {
        let experts = self.experts as f64;
        experts * (1.0 - (1.0 - self.experts_used as f64 / experts).powf(tokens))
    }
}

/// LLaMA-2 70B, the model of most rows of SpecKV.
pub const LLAMA_2_70B: Architecture = Architecture::dense("llama-2-70b", [80, 8_192, 28_672, 64, 8], 32_000);

/// Qwen3, served in the Engram paper (§3.2, §5.3): 4B, 8B and 32B.
pub const QWEN_3: [Architecture; 3] = [
    Architecture::dense("qwen3-4b", [36, 2_560, 9_728, 32, 8], 151_936).tied(),
    Architecture::dense("qwen3-8b", [36, 4_096, 12_288, 32, 8], 151_936),
    Architecture::dense("qwen3-32b", [64, 5_120, 25_600, 64, 8], 151_936),
];

/// SpecKV's 22 configurations (§4.1.2). The paper gives families and ranges of sizes; which members
/// they are is our choice. LLaMA-2 and -3, Qwen and Qwen1.5, Mistral and Mixtral, Gemma, GPT-2 XL and
/// OPT for "GPT-style", CodeLlama, CodeQwen1.5.
///
/// Each shape was compared with a public copy of its `config.json`, named beside it. Qwen's first
/// release counts gate and up projections together there, so its MLP is half of `intermediate_size`.
pub const SPECKV_MODELS: [Architecture; 22] = [
    // litgpt, litgpt/config.py: Llama-2, Llama-3.
    Architecture::dense("llama-2-7b", [32, 4_096, 11_008, 32, 32], 32_000),
    Architecture::dense("llama-2-13b", [40, 5_120, 13_824, 40, 40], 32_000),
    LLAMA_2_70B,
    Architecture::dense("llama-3-8b", [32, 4_096, 14_336, 32, 8], 128_256),
    Architecture::dense("llama-3-70b", [80, 8_192, 28_672, 64, 8], 128_256),
    // GenZ-LLM-Analyzer, GenZ/Models/Model_sets/alibaba.py: Qwen-1_8B, Qwen1.5-4B, Qwen-7B, Qwen1.5-14B.
    Architecture::dense("qwen-1.8b", [24, 2_048, 5_504, 16, 16], 151_936),
    Architecture::dense("qwen1.5-4b", [40, 2_560, 6_912, 20, 20], 151_936),
    Architecture::dense("qwen-7b", [32, 4_096, 11_008, 32, 32], 151_936),
    Architecture::dense("qwen-14b", [40, 5_120, 13_696, 40, 40], 152_064),
    // MindSpeed-LLM, examples of Qwen1.5-32B; GenZ-LLM-Analyzer: Qwen1.5-72B.
    Architecture::dense("qwen1.5-32b", [64, 5_120, 27_392, 40, 8], 152_064),
    Architecture::dense("qwen-72b", [80, 8_192, 24_576, 64, 64], 152_064),
    // litgpt: Mistral-7B-v0.1 with its window, Mixtral-8x7B-v0.1, Gemma.
    Architecture::dense("mistral-7b", [32, 4_096, 14_336, 32, 8], 32_000).window(4_096),
    Architecture::dense("mixtral-8x7b", [32, 4_096, 14_336, 32, 8], 32_000).experts(8, 2),
    Architecture::dense("gemma-2b", [18, 2_048, 16_384, 8, 1], 256_000).head_dim(256).tied(),
    Architecture::dense("gemma-7b", [28, 3_072, 24_576, 16, 16], 256_000).head_dim(256).tied(),
    // nanoGPT, model.py: gpt2-xl. FlexLLMGen, flexllmgen/opt_config.py: OPT.
    Architecture::dense("gpt2-xl", [48, 1_600, 6_400, 25, 25], 50_257).head_dim(64).gpt(),
    Architecture::dense("opt-6.7b", [32, 4_096, 16_384, 32, 32], 50_272).gpt(),
    Architecture::dense("opt-13b", [40, 5_120, 20_480, 40, 40], 50_272).gpt(),
    // litgpt: CodeLlama.
    Architecture::dense("codellama-7b", [32, 4_096, 11_008, 32, 32], 32_016),
    Architecture::dense("codellama-13b", [40, 5_120, 13_824, 40, 40], 32_016),
    Architecture::dense("codellama-34b", [48, 8_192, 22_016, 64, 8], 32_000),
    // MindSpeed-LLM, examples of CodeQwen1.5-7B.
    Architecture::dense("codeqwen1.5-7b", [32, 4_096, 13_440, 32, 4], 92_416),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The shapes give the published numbers of weights, in millions (model cards).
    #[test]
    fn shapes_have_the_published_sizes() {
        let published = [
            6_738, 13_016, 68_977, 8_030, 70_554, 1_837, 3_950, 7_721, 14_167, 32_512, 72_288, 7_242, 46_703, 2_506,
            8_538, 1_558, 6_658, 12_853, 6_738, 13_016, 33_744, 7_250,
        ];
        for (shape, published) in SPECKV_MODELS.iter().zip(published) {
            let ours = shape.parameters() as f64 / 1e6;
            assert!((ours / f64::from(published) - 1.0).abs() < 0.01, "{}: {ours:.0} of {published}", shape.name);
        }
    }

    #[test]
    fn qwen_3_has_the_published_sizes() {
        for (shape, published) in QWEN_3.iter().zip([4_022.0, 8_191.0, 32_762.0]) {
            let ours = shape.parameters() as f64 / 1e6;
            assert!((ours / published - 1.0).abs() < 0.01, "{}: {ours:.0} of {published}", shape.name);
        }
    }

    #[test]
    fn many_tokens_use_all_experts() {
        let mixtral = SPECKV_MODELS[12];
        assert!((mixtral.experts_read(1.0) - 2.0).abs() < 1e-9 && mixtral.experts_read(64.0) > 7.99);
        assert!((LLAMA_2_70B.experts_read(5.0) - 1.0).abs() < 1e-9);
        assert_eq!(LLAMA_2_70B.kv_bytes_per_token(), 327_680);
    }
}
