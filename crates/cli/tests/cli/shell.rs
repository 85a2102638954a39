//! Completions and manual pages.

use super::support::process::bare;
use std::io::Write;
use std::process::{Command, Stdio};

#[tokio::test]
async fn completions_know_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = bare(["completions", shell]).ok().await.out;
        for word in ["serve", "generate", "max-num-seqs", "completions", "destroy"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let refused = bare(["completions", "cmd"]).run().await;
    assert!(refused.err.contains("possible values: bash"), "{refused:?}");
}

/// Runs the script in the shell itself: `cenote pool des` becomes `cenote pool destroy`.
#[tokio::test]
async fn bash_completes() {
    let script = bare(["completions", "bash"]).ok().await.out;
    let ask = "COMP_WORDS=(cenote pool des); COMP_CWORD=2; _cenote cenote des pool; echo \"${COMPREPLY[@]}\"\n";
    let mut bash = Command::new("bash").args(["--norc", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let bash = bash.as_mut().expect("bash is a part of the build's machine");
    let mut stdin = bash.stdin.take().expect("piped");
    stdin.write_all(format!("{script}\n{ask}").as_bytes()).expect("bash reads");
    drop(stdin);
    let mut told = String::new();
    std::io::Read::read_to_string(bash.stdout.as_mut().expect("piped"), &mut told).expect("bash tells");
    bash.wait().expect("it ends");
    assert_eq!(told.trim(), "destroy");
}

#[tokio::test]
async fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("man1");
    let written = bare(["man", "--out", out.to_str().expect("UTF-8")]).ok().await;
    let names: Vec<String> = std::fs::read_dir(&out)
        .expect("it is there")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    for name in ["cenote.1", "cenote-serve.1", "cenote-pool-create.1", "cenote-pool-info.1"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("child") || name.contains("worker")), "{names:?}");
    assert!(written.err.contains(&format!("{} pages", names.len())), "{written:?}");
    let page = bare(["man", "pool", "create"]).ok().await.out;
    assert!(page.contains(".TH cenote-pool-create 1") && page.contains("chunk\\-size"), "{page}");
    assert_eq!(page, std::fs::read_to_string(out.join("cenote-pool-create.1")).expect("it is there"));
    bare(["man", "pool", "make"]).fails(&["`pool make` is no command", "hint: `cenote pool --help`"]).await;
}
