//! Translates the modules of `rtl/` with Verilator, and compiles the models behind `shim/`. Without
//! Verilator, the crate builds without models, and its tests are skipped visibly.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, thread};

include!("src/faults.rs");
include!("src/tops.rs");

/// Options of Verilator.
const VERILATOR: &[&str] = &["--cc", "-O3", "--no-decoration", "--no-timing", "--x-initial", "unique"];
/// More of them for one seed: modules and wide operations stay whole. That halves the text of models,
/// and so their build, but simulation takes twice as long.
const ONE_SEED: &[&str] = &["-fno-inline", "-fno-expand"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(have_verilator)");
    println!("cargo::rerun-if-env-changed=VERILATOR");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-changed=src/faults.rs");
    println!("cargo::rerun-if-changed=src/tops.rs");
    println!("cargo::rerun-if-changed=../../rtl");
    let verilator = env::var("VERILATOR").unwrap_or_else(|_| "verilator".to_owned());
    let Some(include) = include_folder(&verilator) else {
        // A file that never exists makes cargo look for Verilator again in the next build.
        println!("cargo::rerun-if-changed=absent-verilator");
        println!("cargo::warning=`{verilator}` cannot be run; the RTL is not compared with the codecs");
        return;
    };
    // A lint links nothing, so it needs no models, whose build takes minutes.
    println!("cargo::rerun-if-env-changed=CLIPPY_ARGS");
    if env::var_os("CLIPPY_ARGS").is_some() {
        println!("cargo::rustc-cfg=have_verilator");
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let sources = out.join("sources");
    let has_faults = env::var_os("CARGO_FEATURE_FAULTS").is_some();
    let whole = env::var_os("CARGO_FEATURE_WHOLE").map(|_| &WHOLE);
    let tops: Vec<&Top> = whole.into_iter().chain(TOPS).collect();
    copy_sources(Path::new("../../rtl"), &sources, has_faults);
    let build = Build { verilator, include, out, sources, has_faults, tops };
    let mut objects = vec![build.compile(Path::new("shim/shim.cpp"), "shim", &[])];
    for name in ["verilated", "verilated_threads"] {
        objects.push(build.compile(&build.include.join(format!("{name}.cpp")), name, &[]));
    }
    objects.extend(build.models());
    objects.push(build.registry());
    let archive = build.out.join("libcenote_rtl_models.a");
    let _ = fs::remove_file(&archive);
    run(Command::new("ar").arg("rcs").arg(&archive).args(&objects));
    println!("cargo::rustc-link-search=native={}", build.out.display());
    println!("cargo::rustc-link-lib=static=cenote_rtl_models");
    println!("cargo::rustc-link-lib=stdc++");
    println!("cargo::rustc-cfg=have_verilator");
}

/// The folder of Verilator's own C++ code; `None`: it cannot be run.
fn include_folder(verilator: &str) -> Option<PathBuf> {
    let output = Command::new(verilator).args(["--getenv", "VERILATOR_ROOT"]).output().ok()?;
    let root = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| Path::new(root.trim()).join("include"))
}

/// Copies all modules to one folder; with faults, each place of a fault becomes a choice.
fn copy_sources(from: &Path, to: &Path, has_faults: bool) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).expect("OUT_DIR is writable");
    for folder in fs::read_dir(from).expect("rtl/ is there").map(|entry| entry.expect("rtl/ is readable").path()) {
        let Ok(files) = fs::read_dir(&folder) else { continue };
        for file in files.map(|entry| entry.expect("the folder is readable").path()) {
            if file.extension().is_none_or(|extension| extension != "sv") {
                continue;
            }
            let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
            let mut text = fs::read_to_string(&file).expect("RTL is text");
            if has_faults {
                for (index, fault) in FAULTS.iter().enumerate().filter(|(_, fault)| fault.file == name) {
                    let place = fault.right.replace('§', "");
                    assert_eq!(text.matches(&place).count(), 1, "fault {index}: `{place}` in {name}");
                    let parts: Vec<&str> = fault.right.split('§').collect();
                    let (before, right, after) = if let [before, right, after] = parts[..] {
                        (before, right, after)
                    } else {
                        ("", fault.right, "")
                    };
                    let (number, wrong) = (index + 1, fault.wrong);
                    let choice =
                        format!("{before}(($c32(\"rtl_fault()\") == 32'd{number}) ? ({wrong}) : ({right})){after}");
                    text = text.replace(&place, &choice);
                }
            }
            fs::write(to.join(&name), text).expect("OUT_DIR is writable");
        }
    }
}

struct Build {
    verilator: String,
    include: PathBuf,
    out: PathBuf,
    sources: PathBuf,
    has_faults: bool,
    tops: Vec<&'static Top>,
}

impl Build {
    /// Compiles one C++ file to an object. Optimizing takes longer than the simulation saves.
    fn compile(&self, file: &Path, name: &str, folders: &[&Path]) -> PathBuf {
        let object = self.out.join(format!("{name}.o"));
        let changed = |file: &Path| fs::metadata(file).and_then(|data| data.modified()).ok();
        if file.is_relative() || file.starts_with(&self.include) {
            // Only models' sources are written anew each time.
            let (made, of) = (changed(&object), changed(file).max(changed(Path::new("shim/model.h"))));
            if made > of {
                return object;
            }
        }
        let mut command = Command::new(env::var_os("CXX").unwrap_or_else(|| "c++".into()));
        command.args(["-std=c++17", "-O0", "-w", "-fPIC", "-c"]).arg(file).arg("-o").arg(&object);
        command.arg("-Ishim").arg("-I").arg(&self.include).arg("-I").arg(self.include.join("vltstd"));
        folders.iter().for_each(|folder| {
            command.arg("-I").arg(folder);
        });
        run(&mut command);
        object
    }

    /// All models, a thread for each processor: most of the build's time is the C++ compiler's.
    fn models(&self) -> Vec<PathBuf> {
        let (queue, processors) =
            (Mutex::new(self.tops.iter()), thread::available_parallelism().map_or(1, usize::from));
        let work = || {
            let next = || queue.lock().expect("no model failed").next();
            std::iter::from_fn(next).map(|top| self.model(top)).collect::<Vec<PathBuf>>()
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a model cannot be built")).collect()
        })
    }

    /// Translates and compiles one top module.
    fn model(&self, top: &Top) -> PathBuf {
        let (name, folder) = (top.name, self.out.join(top.name));
        // A model whose sources have not changed is kept; most changes concern one of them.
        let (key, key_file) = (self.key(top), self.out.join(format!("{name}.key")));
        let object = self.out.join(format!("{name}.o"));
        if fs::read_to_string(&key_file).is_ok_and(|kept| kept == key) && object.exists() {
            return object;
        }
        let _ = fs::remove_file(&key_file);
        let _ = fs::remove_dir_all(&folder);
        let mut command = Command::new(&self.verilator);
        command.args(VERILATOR).args(self.more_options()).args(["--top-module", top.module, "--prefix"]);
        command.arg(format!("V{name}")).arg("-Mdir").arg(&folder).arg("-y").arg(&self.sources);
        command.args(top.parameters.iter().map(|parameter| format!("-G{parameter}")));
        // A choice of a fault has 32 bits or both sides' larger width, which is no fault of the RTL.
        command.arg(if self.has_faults { "-Wno-fatal" } else { "-Wall" });
        if self.has_faults {
            command.arg("-Wno-lint");
        }
        run(command.arg(self.sources.join(format!("{}.sv", top.module))));
        let mut parts: Vec<String> = fs::read_dir(&folder)
            .expect("Verilator made the folder")
            .map(|entry| entry.expect("the folder is readable").file_name().to_string_lossy().into_owned())
            .filter(|file| file.ends_with(".cpp"))
            .collect();
        parts.sort();
        let include = parts.iter().map(|part| format!("#include \"{part}\"\n")).collect::<String>();
        let mut text = format!("#include \"model.h\"\n{include}");
        writeln!(text, "std::unique_ptr<Model> make_{name}(uint32_t seed) {{").expect("a string");
        writeln!(text, "  auto model = std::make_unique<ModelOf<V{name}>>(seed);").expect("a string");
        let header = fs::read_to_string(folder.join(format!("V{name}.h"))).expect("Verilator made the header");
        for (pin, address, bits) in header.lines().filter_map(pin_of) {
            let address = format!("{}model->top->{pin}", if address { "&" } else { "" });
            writeln!(text, "  model->pins.push_back({{\"{pin}\", {address}, {bits}}});").expect("a string");
        }
        text += "  return model;\n}\n";
        let file = folder.join("all.cc");
        fs::write(&file, text).expect("OUT_DIR is writable");
        self.compile(&file, name, &[&folder]);
        fs::write(&key_file, key).expect("OUT_DIR is writable");
        object
    }

    fn more_options(&self) -> &[&str] {
        if env::var_os("CARGO_FEATURE_WHOLE").is_some() { &[] } else { ONE_SEED }
    }

    /// All that a model is made from: its parameters, and the text of its modules.
    fn key(&self, top: &Top) -> String {
        let text_of = |module: &str| fs::read_to_string(self.sources.join(format!("{module}.sv"))).ok();
        let (mut open, mut seen) = (vec![top.module.to_owned()], vec![top.module.to_owned()]);
        let mut key = format!("{} {VERILATOR:?} {:?} {:?}\n", self.verilator, self.more_options(), top.parameters);
        key += &fs::read_to_string("shim/model.h").expect("the shim is there");
        while let Some(module) = open.pop() {
            let Some(text) = text_of(&module) else { continue };
            for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                if !seen.iter().any(|known| known == word) && text_of(word).is_some() {
                    seen.push(word.to_owned());
                    open.push(word.to_owned());
                }
            }
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            code.for_each(|line| writeln!(key, "{line}").expect("a string"));
        }
        key
    }

    /// The function that makes a model by name.
    fn registry(&self) -> PathBuf {
        let mut text = String::from("#include \"model.h\"\n");
        for Top { name, .. } in &self.tops {
            writeln!(text, "std::unique_ptr<Model> make_{name}(uint32_t seed);").expect("a string");
        }
        text += "std::unique_ptr<Model> make_model(const char* name, uint32_t seed) {\n";
        for Top { name, .. } in &self.tops {
            writeln!(text, "  if (std::strcmp(name, \"{name}\") == 0) return make_{name}(seed);").expect("a string");
        }
        text += "  return nullptr;\n}\n";
        let file = self.out.join("registry.cpp");
        fs::write(&file, text).expect("OUT_DIR is writable");
        self.compile(&file, "registry", &[])
    }
}

/// Name of a pin of a line of a model's header, whether its address must be taken, and its bits.
fn pin_of(line: &str) -> Option<(&str, bool, u32)> {
    let line = line.trim();
    let rest = line.strip_prefix("VL_IN").or_else(|| line.strip_prefix("VL_OUT"))?;
    let (size, rest) = rest.split_once('(')?;
    let mut parts = rest.strip_suffix(");")?.split(',');
    let name = parts.next()?.trim_start_matches('&');
    let (high, low) = (parts.next()?.parse::<u32>().ok()?, parts.next()?.parse::<u32>().ok()?);
    Some((name, size != "W", high - low + 1))
}

fn run(command: &mut Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?} failed ({status})"),
        Err(error) => panic!("{command:?} cannot be run: {error}"),
    }
}
