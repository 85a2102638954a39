//! The data path of top modules, drawn from their instances: an edge for each net from an output of
//! one instance to an input of another. rtl/README.md shows it; `lint` detects a stale drawing.

use super::DOCUMENT;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const TOPS: [(&str, &str); 13] = [
    ("top", "cache_system"),
    ("top", "cache_engine"),
    ("top", "page_encoder"),
    ("top", "page_decoder"),
    ("memory", "memory_path"),
    ("speckv", "speckv_encode"),
    ("speckv", "speckv_decode"),
    ("qpack", "qpack_encode"),
    ("qpack", "qpack_decode"),
    ("oaken", "oaken_engine"),
    ("oaken", "oaken_encode"),
    ("oaken", "oaken_store"),
    ("oaken", "oaken_decode"),
];

/// An instance: its module, and the identifiers at its ports.
struct Instance {
    module: String,
    name: String,
    ports: Vec<(String, Vec<String>)>,
}

/// Draws the data paths into the document.
///
/// # Errors
/// A file cannot be read or written.
pub fn draw(root: &Path) -> Result<(), String> {
    let path = root.join(DOCUMENT);
    let text = fs::read_to_string(&path).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    fs::write(path, redrawn(root, &text)?).map_err(|error| format!("{DOCUMENT}: {error}"))
}

/// # Errors
/// The drawings differ from the modules.
pub fn check(root: &Path) -> Result<(), String> {
    let text = fs::read_to_string(root.join(DOCUMENT)).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    if redrawn(root, &text)? == text {
        return Ok(());
    }
    Err(format!("{DOCUMENT}: stale diagram; `cargo xtask rtl diagram` draws it again"))
}

fn redrawn(root: &Path, text: &str) -> Result<String, String> {
    let mut text = text.to_owned();
    for (folder, top) in TOPS {
        let opening = format!("<!-- generated: {top} -->\n");
        let start = text.find(&opening).ok_or_else(|| format!("{DOCUMENT}: no `{}`", opening.trim()))? + opening.len();
        let end = start + text[start..].find("<!-- end -->").ok_or_else(|| format!("{DOCUMENT}: no end of `{top}`"))?;
        text.replace_range(start..end, &drawing(root, folder, top)?);
    }
    Ok(text)
}

fn read(root: &Path, module: &str) -> Option<String> {
    let folders = fs::read_dir(root.join("rtl")).ok()?;
    folders.filter_map(|entry| fs::read_to_string(entry.ok()?.path().join(format!("{module}.sv"))).ok()).next()
}

/// Names of modules that some file instantiates.
///
/// # Errors
/// A file cannot be read.
pub fn instantiated(root: &Path, files: &[PathBuf]) -> Result<BTreeSet<String>, String> {
    let mut modules = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        modules.extend(instances(root, &text).into_iter().map(|one| one.module));
    }
    Ok(modules)
}

fn drawing(root: &Path, folder: &str, top: &str) -> Result<String, String> {
    let path = format!("rtl/{folder}/{top}.sv");
    let text = fs::read_to_string(root.join(&path)).map_err(|error| format!("{path}: {error}"))?;
    let instances = instances(root, &text);
    let mut drivers: BTreeMap<&str, &str> = BTreeMap::new();
    let is_control = |net: &str| net.ends_with("ready") || ["clk", "rst", "en", "go"].contains(&net);
    let directions: BTreeMap<&str, BTreeSet<String>> = instances
        .iter()
        .map(|one| (one.module.as_str(), outputs(&read(root, &one.module).unwrap_or_default())))
        .collect();
    for one in &instances {
        for (port, nets) in one.ports.iter().filter(|(port, _)| directions[one.module.as_str()].contains(port)) {
            if !port.ends_with("ready") {
                drivers.extend(nets.iter().map(|net| (net.as_str(), one.name.as_str())));
            }
        }
    }
    let mut edges = BTreeSet::new();
    for one in &instances {
        for (_, nets) in one.ports.iter().filter(|(port, _)| !directions[one.module.as_str()].contains(port)) {
            for net in nets.iter().filter(|net| !is_control(net)) {
                if let Some(driver) = drivers.get(net.as_str()).filter(|driver| **driver != one.name) {
                    edges.insert((*driver, one.name.as_str()));
                }
            }
        }
    }
    let mut out = "```mermaid\nflowchart LR\n".to_owned();
    for one in &instances {
        writeln!(out, "  {0}[\"{0}: {1}\"]", one.name, one.module).expect("a string");
    }
    for (from, to) in edges {
        writeln!(out, "  {from} --> {to}").expect("a string");
    }
    Ok(out + "```\n")
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The output ports of a module.
fn outputs(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("output"));
    lines.filter_map(|line| line.trim_end_matches(',').split_whitespace().last().map(str::to_owned)).collect()
}

/// Instances of modules of the tree that move data: streams and lanes.
fn instances(root: &Path, text: &str) -> Vec<Instance> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let mut all = Vec::new();
    for statement in code.split(';') {
        // `module #(parameters) name (.port(net), …)`, behind anything that ends in `begin` or `)`.
        let Some(module) = statement.split(|c: char| !is_word(c)).find(|word| {
            !word.is_empty() && *word != "module" && is_instance(statement, word) && read(root, word).is_some()
        }) else {
            continue;
        };
        let at = statement.find(module).unwrap_or_default() + module.len();
        let mut rest = statement[at..].trim_start();
        if let Some(parameters) = rest.strip_prefix('#') {
            rest = behind_brackets(parameters.trim_start());
        }
        let rest = rest.trim_start();
        let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
        let ports = ports(&rest[name.len()..]);
        if !name.is_empty() && !ports.is_empty() {
            all.push(Instance { module: module.to_owned(), name, ports });
        }
    }
    all
}

/// Whether a word of a statement is followed by `#(` or by a name and a bracket.
fn is_instance(statement: &str, word: &str) -> bool {
    statement.match_indices(word).any(|(at, _)| {
        let rest = statement[at + word.len()..].trim_start();
        let name = rest.trim_start_matches(is_word);
        rest.starts_with("#(") || (name.len() < rest.len() && name.trim_start().starts_with('(') && rest.contains("."))
    })
}

/// The text behind a bracketed part.
fn behind_brackets(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return &text[at + 1..],
            ')' => depth -= 1,
            _ => {}
        }
    }
    ""
}

/// Ports with the identifiers that they are connected to; `.port` alone is connected to its name.
fn ports(text: &str) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('.') {
        let after = &rest[at + 1..];
        let port: String = after.chars().take_while(|c| is_word(*c)).collect();
        let behind = after[port.len()..].trim_start();
        let mut nets = vec![port.clone()];
        rest = behind;
        if behind.starts_with('(') {
            rest = behind_brackets(behind);
            let inside = &behind[..behind.len() - rest.len()];
            let words =
                inside.split(|c: char| !is_word(c)).filter(|word| word.starts_with(|c: char| c.is_alphabetic()));
            nets = words.map(str::to_owned).collect();
        }
        all.push((port, nets));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_outputs_are_read() {
        let text = " (\n .clk,\n .s_data({a, b[3:0]}),\n .m_data (c)\n )";
        let expected = [("clk", vec!["clk"]), ("s_data", vec!["a", "b"]), ("m_data", vec!["c"])];
        let expected: Vec<(String, Vec<String>)> = expected
            .into_iter()
            .map(|(port, nets)| (port.to_owned(), nets.into_iter().map(str::to_owned).collect()))
            .collect();
        assert_eq!(ports(text), expected);
        let module = "  input  logic a,\n  output logic [3:0] b,\n  output logic c\n);";
        assert_eq!(outputs(module), BTreeSet::from(["b".to_owned(), "c".to_owned()]));
    }
}
