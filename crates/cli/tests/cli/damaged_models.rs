//! Missing or damaged model directories: the error names the file and the fact, without a panic.

use super::support::process::cenote;
use super::support::repository;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A copy of the demo model.
struct Copy(TempDir);

impl Copy {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for name in
            ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
        {
            std::fs::copy(repository("models/demo").join(name), dir.path().join(name)).expect(name);
        }
        Self(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.file(name), bytes).expect(name);
    }

    fn cut(&self, name: &str, part: impl Fn(usize) -> usize) {
        let bytes = std::fs::read(self.file(name)).expect(name);
        self.write(name, &bytes[..part(bytes.len())]);
    }

    async fn fails(&self, facts: &[&str]) {
        generate(self.0.path()).fails(facts).await;
    }
}

fn generate(model: &Path) -> super::support::process::Cenote {
    cenote(["generate", "--prompt", "x", "--max-tokens", "1", "--model", model.to_str().expect("UTF-8")])
}

#[tokio::test]
async fn every_command_reports_a_missing_model() {
    let missing = ["--model", "no-such-model"];
    for command in [&["generate", "--prompt", "x"][..], &["serve", "--port", "0", "--no-pool"], &["demo"]] {
        cenote(command.iter().copied().chain(missing)).fails(&["no-such-model"]).await;
    }
    // The front reports it once, instead of each worker repeatedly.
    let workers = ["serve", "--port", "0", "--region-size", "32MiB", "--prefill", "1", "--decode", "1"];
    let outcome = cenote(workers.into_iter().chain(missing)).fails(&["no-such-model"]).await;
    assert_eq!(outcome.err.matches("no-such-model").count(), 1, "{outcome:?}");
}

#[tokio::test]
async fn damaged_weights_are_reported() {
    for part in [|_| 0, |_| 5, |_| 100, |whole| whole / 2, |whole| whole - 1] {
        let copy = Copy::new();
        copy.cut("model.safetensors", part);
        copy.fails(&["model.safetensors"]).await;
    }
    let copy = Copy::new();
    copy.write("model.safetensors", &[0xff; 4096]);
    copy.fails(&["model.safetensors"]).await;
    std::fs::remove_file(copy.file("model.safetensors")).expect("it was there");
    copy.fails(&["model.safetensors"]).await;
}

#[tokio::test]
async fn damaged_texts_are_reported() {
    let half = |whole| whole / 2;
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let copy = Copy::new();
        copy.cut(name, half);
        copy.fails(&[name]).await;
        copy.write(name, b"this is not JSON");
        copy.fails(&[name]).await;
        copy.write(name, &[0xff, 0xfe, 0]);
        copy.fails(&[name]).await;
    }
    for name in ["config.json", "tokenizer.json"] {
        let copy = Copy::new();
        std::fs::remove_file(copy.file(name)).expect("it was there");
        copy.fails(&[name]).await;
        copy.write(name, b"[]");
        copy.fails(&[name]).await;
    }
}

/// Weights that contradict the configuration.
#[tokio::test]
async fn a_configuration_that_does_not_fit_is_reported() {
    for (from, to, fact) in [
        ("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", "layers.4"),
        ("\"hidden_size\": 256", "\"hidden_size\": 0", "hidden_size"),
        ("\"num_attention_heads\": 4", "\"num_attention_heads\": 3", "3 attention heads"),
        ("\"vocab_size\": 4096", "\"vocab_size\": 100", "[100, 256]"),
        ("LlamaForCausalLM", "BertForMaskedLM", "BertForMaskedLM"),
    ] {
        let copy = Copy::new();
        let text = std::fs::read_to_string(copy.file("config.json")).expect("a text");
        assert!(text.contains(from), "{from}");
        copy.write("config.json", text.replace(from, to).as_bytes());
        copy.fails(&[fact]).await;
    }
}
