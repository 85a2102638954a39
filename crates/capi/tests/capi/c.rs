//! The checked-in header matches the code, and a C program of two processes works with it.

#[path = "../../install.rs"]
mod install;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const ROUNDS: u64 = 300;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_in_the_tree_is_the_one_that_is_made() {
    let made = cbindgen::generate(package()).expect("the header is made");
    let mut text = Vec::new();
    made.write(&mut text);
    let path = package().join("include/cenote.h");
    if std::env::var_os("CENOTE_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &text).expect("the header is written");
    }
    let there = std::fs::read(&path).expect("there is a header");
    assert!(there == text, "{} is out of date: CENOTE_UPDATE_HEADER=1 cargo test -p cenote-capi", path.display());
}

/// The folder of the library: that of this test's program, or the one above it.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    let folders = program.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libcenote.so")).find(|library| library.exists());
    found.expect("cargo builds the library before its tests")
}

/// Installs the library below a folder, and returns the prefix.
fn installed(folder: &Path) -> PathBuf {
    let (prefix, library) = (folder.join("prefix"), library());
    let built = library.parent().expect("it lies in a folder");
    install::install(built, package(), env!("CARGO_PKG_VERSION"), &prefix).expect("the folder is writable");
    prefix
}

fn compile(folder: &Path, name: &str) -> PathBuf {
    let program = folder.join(name);
    let place = installed(folder).join("lib").display().to_string();
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"])
        .arg(&program)
        .arg(package().join("tests").join(name).with_extension("c"))
        .arg("-pthread")
        .args([&format!("-L{place}"), &format!("-Wl,-rpath,{place}"), "-lcenote"])
        .output()
        .expect("there is a C compiler: cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

struct Region(String);

impl Region {
    fn new(purpose: &str) -> Self {
        Self(format!("cenote-c-{purpose}-{}", std::process::id()))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(Path::new("/dev/shm").join(&self.0));
    }
}

fn ended(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs both processes, under `checker` if it is given.
fn run(program: &Path, region: &Region, checker: &[&str]) {
    let start = |role: &str| {
        let command: Vec<&str> = checker.iter().copied().chain([program.to_str().expect("a text")]).collect();
        let mut command_line = Command::new(command[0]);
        command_line.args(&command[1..]).args([role, &format!("shm:{}", region.0)]);
        command_line.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command_line.spawn().expect("it starts")
    };
    let mut first = start("first");
    let mut said = BufReader::new(first.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("text");
    if line != "ready\n" {
        panic!(
            "the first process: {}{line}",
            String::from_utf8_lossy(&first.wait_with_output().expect("it ends").stderr)
        );
    }
    let second: u64 = ended(start("second")).trim().parse().expect("a number");
    assert!((ROUNDS..=2 * ROUNDS).contains(&second), "{second}");
    first.stdin.take().expect("piped").write_all(b"done\n").expect("it reads");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    ended(first);
    assert_eq!(rest.trim(), (2 * ROUNDS).to_string());
}

#[test]
fn two_processes_share_memory_locks_and_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "two_processes");
    run(&program, &Region::new("plain"), &[]);
    match Command::new("valgrind").arg("--version").output() {
        Ok(version) if version.status.success() => {
            let checker =
                ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"];
            run(&program, &Region::new("valgrind"), &checker);
        }
        _ => cenote_base::testing::skip("the same under valgrind, which is not installed"),
    }
}

#[test]
fn blocks_from_c_are_found_by_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, region) = (compile(folder.path(), "publish"), Region::new("publish"));
    let name = format!("shm:{}", region.0);
    let run = Command::new(&program).arg(&name).output().expect("it starts");
    assert!(run.status.success(), "{}: {}", run.status, String::from_utf8_lossy(&run.stderr));
    let source = name.parse().expect("a region");
    let fabric = cenote_pool::open_region(&source, &cenote_mem::MapOptions::default()).expect("it is there");
    let options = cenote_pool::AttachOptions { private: true, ..cenote_pool::AttachOptions::named("test") };
    let pool = cenote_pool::Pool::attach(fabric, &options).expect("it attaches");
    let mut fingerprint = [0; 32];
    fingerprint[0] = 7;
    let space = pool.namespace(&cenote_pool::NamespaceRecord {
        fingerprint,
        label: "from C".to_owned(),
        block_bytes: 4096,
        block_tokens: 0,
        num_layers: 0,
    });
    let space = space.expect("it is there");
    for block in 0..16_u8 {
        let key = [block + 1; 16];
        assert!(pool.lookup(&[cenote_base::BlockHash(key)]).is_empty(), "a key is no name");
        let hits = pool.lookup(&[space.hasher.alias(&key)]);
        let mut bytes = vec![0; 4096];
        assert_eq!(pool.read(&hits[0], &mut [&mut bytes]), cenote_pool::ReadOutcome::Whole, "block {block}");
        assert!(bytes.iter().all(|&byte| byte == block), "block {block}");
    }
}

#[test]
fn rows_of_pinned_blocks_are_gathered_in_c() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, region) = (compile(folder.path(), "gather"), Region::new("gather"));
    let run = Command::new(&program).arg(format!("shm:{}", region.0)).output().expect("it starts");
    assert!(run.status.success(), "{}: {}", run.status, String::from_utf8_lossy(&run.stderr));
}

/// Earlier, a child's `exit` released its parent's lock, and the next holder did not learn that a
/// thread or a process had ended with the lock.
#[test]
fn locks_outlive_children_and_tell_of_ended_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, region) = (compile(folder.path(), "fork"), Region::new("fork"));
    let start = |role: &str| {
        let mut command = Command::new(&program);
        command.args([role, &format!("shm:{}", region.0)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let says = |role: &str| ended(start(role));
    let mut holder = start("holds");
    let mut said = BufReader::new(holder.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("text");
    if line != "forked\n" {
        panic!("{line}{}", String::from_utf8_lossy(&holder.wait_with_output().expect("it ended").stderr));
    }
    assert_eq!(says("asks"), format!("{}\n", -libc::ETIMEDOUT), "the parent holds the lock");
    holder.stdin.take().expect("piped").write_all(b"\n").expect("it listens");
    ended(holder);
    for (role, told) in [("exits", ""), ("returns", ""), ("thread", "1\n")] {
        assert_eq!(says("asks"), "0\n", "before `{role}`");
        assert_eq!(says(role), told, "{role}");
        if told.is_empty() {
            assert_eq!(says("asks"), "1\n", "after `{role}`: it ended with the lock");
        }
    }
    assert_eq!(says("asks"), "0\n");
}

/// Flags of the installed library; `None` without pkg-config.
fn flags(prefix: &Path, query: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(query).arg("cenote");
    let Ok(said) = command.output() else {
        cenote_base::testing::skip("the compile lines of docs/guides/c.md: pkg-config is not installed");
        return None;
    };
    assert!(said.status.success(), "pkg-config {query:?}: {}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8(said.stdout).expect("text");
    Some(said.split_whitespace().map(str::to_owned).collect())
}

/// The example of the guide, built by the guide's lines as C and as C++, with the shared and the
/// static library. One process builds a list and ends; another one, on another host in half of the
/// cases, reads and frees it.
#[test]
fn the_example_is_c_and_cplusplus_and_links_both_libraries() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = installed(folder.path());
    let source = package().join("examples/list.c").display().to_string();
    let place = prefix.join("lib").display().to_string();
    let Some(include) = flags(&prefix, &["--cflags"]) else { return };
    let shared = flags(&prefix, &["--libs"]).expect("it was there before");
    let carried = flags(&prefix, &["--variable=static_libs"]).expect("it was there before");
    let languages: [(&str, &[&str]); 2] = [("cc", &["-std=c99"]), ("c++", &["-x", "c++", "-std=c++11"])];
    for (compiler, language) in languages {
        if Command::new(compiler).arg("--version").output().is_err() {
            cenote_base::testing::skip(&format!("the example of the guide: {compiler} is not installed"));
            continue;
        }
        for (kind, libraries) in [("shared", &shared), ("static", &carried)] {
            let program = folder.path().join(format!("list-{compiler}-{kind}"));
            let compiled = Command::new(compiler)
                .args(["-Wall", "-Wextra", "-pedantic", "-Werror"])
                .args(language)
                .arg(&source)
                .args(["-x", "none", "-o"])
                .arg(&program)
                .args(&include)
                .args(libraries)
                .output()
                .expect("it was there before");
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            for hosts in ["1", "2"] {
                let region = Region::new(&format!("list-{compiler}-{kind}-{hosts}"));
                // The static program needs no path of the library.
                let path = if kind == "shared" { place.as_str() } else { "" };
                let run = |role: &str, host: &str, input: &str| {
                    let mut child = Command::new(&program)
                        .args([role, &format!("shm:{}", region.0), host, hosts])
                        .env("LD_LIBRARY_PATH", path)
                        .stdin(Stdio::piped())
                        .stdout(Stdio::piped())
                        .stderr(Stdio::piped())
                        .spawn()
                        .expect("it was compiled");
                    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
                    ended(child)
                };
                let other = if hosts == "2" { "1" } else { "0" };
                run("build", "0", "one\ntwo\nthree\n");
                assert_eq!(run("read", other, ""), "three\ntwo\none\n", "{compiler} {kind}, {hosts} hosts");
                run("free", other, "");
                run("build", "0", "four\n");
                assert_eq!(run("read", other, ""), "four\n");
            }
        }
    }
}
