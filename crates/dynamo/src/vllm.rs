//! Block hashes of vLLM, from tokens alone.
//!
//! vLLM hashes `(parent, tokens, extra keys)` of each block with SHA-256, serialized by pickle or by
//! CBOR, and takes a hash of a seed as parent of the first block (vLLM 0.32,
//! `vllm/v1/core/kv_cache_utils.py`, `vllm/utils/hashing.py`). The only extra key that a router
//! knows is the cache salt, which is a key of the first block.

use sha2::{Digest, Sha256};

/// vLLM's seed of cryptographic hashes if `PYTHONHASHSEED` is not set.
pub const DEFAULT_SEED: &str = "vllm-none-hash";

/// Pickle writes objects into frames of about 64 KiB. A block of more tokens may need a second
/// frame, which this encoder does not write.
const TOKENS_MAX: usize = 8192;

/// The protocol that Python's pickle writes by default in Python 3.8 and later.
const PROTOCOL: u8 = 5;

/// How an engine serializes what it hashes: vLLM's `--prefix-caching-hash-algo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `sha256`, vLLM's default: pickle.
    Sha256,
    /// `sha256_cbor`: canonical CBOR.
    Sha256Cbor,
}

/// The hashes of one prompt, block after block.
pub(crate) struct Chain {
    algorithm: Algorithm,
    parent: [u8; 32],
    salt: Option<String>,
    encoded: Vec<u8>,
}

impl Chain {
    /// `None`: this encoder cannot hash blocks of this size.
    pub fn new(algorithm: Algorithm, seed: &str, salt: Option<&str>, block_tokens: usize) -> Option<Self> {
        if !(1..=TOKENS_MAX).contains(&block_tokens) || salt.is_some_and(|salt| salt.len() > TOKENS_MAX) {
            return None;
        }
        let mut encoded = Vec::new();
        match algorithm {
            Algorithm::Sha256 => pickled(&mut encoded, |body| {
                text(body, seed);
            }),
            Algorithm::Sha256Cbor => cbor_text(&mut encoded, seed),
        }
        let parent = Sha256::digest(&encoded).into();
        Some(Self { algorithm, parent, salt: salt.map(str::to_owned), encoded })
    }

    /// The hash of the next block.
    pub fn next(&mut self, tokens: &[u32]) -> [u8; 32] {
        self.encoded.clear();
        let salt = self.salt.take();
        match self.algorithm {
            Algorithm::Sha256 => pickled(&mut self.encoded, |body| {
                body.extend_from_slice(b"C\x20");
                body.extend_from_slice(&self.parent);
                body.push(MEMOIZE);
                pickle_tokens(body, tokens);
                pickle_salt(body, salt.as_deref());
                body.extend_from_slice(&[TUPLE3, MEMOIZE]);
            }),
            Algorithm::Sha256Cbor => {
                self.encoded.extend_from_slice(&[ARRAY | 3, 0x58, 32]);
                self.encoded.extend_from_slice(&self.parent);
                head(&mut self.encoded, ARRAY, tokens.len() as u64);
                tokens.iter().for_each(|&token| head(&mut self.encoded, 0, u64::from(token)));
                match salt {
                    None => self.encoded.push(0xf6),
                    Some(salt) => {
                        self.encoded.extend_from_slice(&[ARRAY | 1, ARRAY | 2]);
                        cbor_text(&mut self.encoded, SALT);
                        cbor_text(&mut self.encoded, &salt);
                    }
                }
            }
        }
        self.parent = Sha256::digest(&self.encoded).into();
        self.parent
    }
}

/// The tag of a salt among the extra keys.
const SALT: &str = "cache_salt";

const MEMOIZE: u8 = 0x94;
const TUPLE1: u8 = 0x85;
const TUPLE2: u8 = 0x86;
const TUPLE3: u8 = 0x87;

/// A pickle of one frame.
fn pickled(to: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    to.extend_from_slice(&[0x80, PROTOCOL, 0x95]);
    let length = to.len();
    to.extend_from_slice(&[0; 8]);
    body(to);
    to.push(b'.');
    let bytes = (to.len() - length - 8) as u64;
    to[length..length + 8].copy_from_slice(&bytes.to_le_bytes());
}

fn pickle_tokens(body: &mut Vec<u8>, tokens: &[u32]) {
    if tokens.len() > 3 {
        body.push(b'(');
    }
    for &token in tokens {
        match token {
            0..=0xff => body.extend_from_slice(&[b'K', token as u8]),
            0x100..=0xffff => {
                body.push(b'M');
                body.extend_from_slice(&(token as u16).to_le_bytes());
            }
            0x1_0000..=0x7fff_ffff => {
                body.push(b'J');
                body.extend_from_slice(&token.to_le_bytes());
            }
            // Larger than a signed word: a long of five bytes, the last of them for the sign.
            0x8000_0000.. => {
                body.extend_from_slice(&[0x8a, 5]);
                body.extend_from_slice(&token.to_le_bytes());
                body.push(0);
            }
        }
    }
    body.push(match tokens.len() {
        1 => TUPLE1,
        2 => TUPLE2,
        3 => TUPLE3,
        _ => b't',
    });
    body.push(MEMOIZE);
}

fn pickle_salt(body: &mut Vec<u8>, salt: Option<&str>) {
    let Some(salt) = salt else { return body.push(b'N') };
    text(body, SALT);
    text(body, salt);
    body.extend_from_slice(&[TUPLE2, MEMOIZE, TUPLE1, MEMOIZE]);
}

fn text(body: &mut Vec<u8>, text: &str) {
    match u8::try_from(text.len()) {
        Ok(length) => body.extend_from_slice(&[0x8c, length]),
        Err(_) => {
            body.push(b'X');
            body.extend_from_slice(&(text.len() as u32).to_le_bytes());
        }
    }
    body.extend_from_slice(text.as_bytes());
    body.push(MEMOIZE);
}

const ARRAY: u8 = 0x80;

/// The head of a CBOR item: its major type and the shortest form of a number.
fn head(to: &mut Vec<u8>, major: u8, number: u64) {
    match number {
        0..=23 => to.push(major | number as u8),
        24..=0xff => to.extend_from_slice(&[major | 24, number as u8]),
        0x100..=0xffff => {
            to.push(major | 25);
            to.extend_from_slice(&(number as u16).to_be_bytes());
        }
        _ => {
            to.push(major | 26);
            to.extend_from_slice(&(number as u32).to_be_bytes());
        }
    }
}

fn cbor_text(to: &mut Vec<u8>, text: &str) {
    head(to, 0x60, text.len() as u64);
    to.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes that vLLM 0.32 computed (`tests/vectors/make_vllm.py`).
    #[test]
    fn hashes_equal_those_of_vllm() {
        let text = include_str!("../tests/vectors/vllm.json");
        let vectors: serde_json::Value = serde_json::from_str(text).expect("the file is JSON");
        let number = |value: &serde_json::Value| value.as_u64().expect("a number") as u32;
        let tokens: Vec<u32> = vectors["tokens"].as_array().unwrap().iter().map(number).collect();
        let cases = vectors["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 90);
        for case in cases {
            let algorithm = match case["algorithm"].as_str().unwrap() {
                "sha256" => Algorithm::Sha256,
                "sha256_cbor" => Algorithm::Sha256Cbor,
                other => panic!("{other}"),
            };
            let (size, seed) = (number(&case["size"]) as usize, case["seed"].as_str().unwrap_or(DEFAULT_SEED));
            let mut chain = Chain::new(algorithm, seed, case["salt"].as_str(), size).expect("a size for pickle");
            let hex = |hash: [u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let hashes: Vec<String> = tokens.chunks_exact(size).map(|block| hex(chain.next(block))).collect();
            let wanted: Vec<&str> =
                case["hashes"].as_array().unwrap().iter().map(|hash| hash.as_str().unwrap()).collect();
            assert_eq!(hashes, wanted, "{algorithm:?}, {seed}, {size}, {}", case["salt"]);
        }
    }

    #[test]
    fn sizes_that_need_a_second_frame_are_refused() {
        for size in [0, TOKENS_MAX + 1] {
            assert!(Chain::new(Algorithm::Sha256, DEFAULT_SEED, None, size).is_none(), "{size}");
        }
        assert!(Chain::new(Algorithm::Sha256, DEFAULT_SEED, None, TOKENS_MAX).is_some());
    }
}
