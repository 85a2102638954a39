//! Keys of SGLang's hierarchical cache, from tokens alone.
//!
//! A key is SHA-256 over the digest of the page before and the page's tokens, 32 bits each, as hex.
//! A cache salt seeds the first page (SGLang 0.5.23, `srt/mem_cache/utils.py`,
//! `srt/mem_cache/cpp_utils/hash_binding.cpp`).

use sha2::{Digest, Sha256};

/// The keys of one prompt, page after page.
pub(crate) struct Chain {
    parent: Option<[u8; 32]>,
}

impl Chain {
    pub fn new(salt: Option<&str>) -> Self {
        Self { parent: salt.map(seed) }
    }

    /// The key of the next page.
    pub fn next(&mut self, tokens: &[u32]) -> String {
        let mut hasher = Sha256::new();
        if let Some(parent) = self.parent {
            hasher.update(parent);
        }
        tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
        let digest: [u8; 32] = hasher.finalize().into();
        self.parent = Some(digest);
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The digest before the first page of a request with a salt, and without an extra key.
fn seed(salt: &str) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(b"sglang-cache-namespace-v1");
    hasher.update([0, 1]);
    hasher.update((salt.len() as u64).to_le_bytes());
    hasher.update(salt);
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that SGLang 0.5.23 computed (`tests/vectors/make_sglang.py`).
    #[test]
    fn keys_equal_those_of_sglang() {
        let text = include_str!("../tests/vectors/sglang.json");
        let vectors: serde_json::Value = serde_json::from_str(text).expect("the file is JSON");
        let number = |value: &serde_json::Value| value.as_u64().expect("a number") as u32;
        let tokens: Vec<u32> = vectors["tokens"].as_array().unwrap().iter().map(number).collect();
        let cases = vectors["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 9);
        for case in cases {
            let mut chain = Chain::new(case["salt"].as_str());
            let keys: Vec<String> =
                tokens.chunks_exact(number(&case["size"]) as usize).map(|page| chain.next(page)).collect();
            let wanted: Vec<&str> = case["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
            assert_eq!(keys, wanted, "{case}");
        }
    }
}
