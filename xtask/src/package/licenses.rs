//! Texts of the licences of all linked crates, each text once. A package that is passed on needs them.

use super::metadata::Crate;
use crate::process::{names_in, read_lossy};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Beginnings of names of such files in a crate, in small letters.
const NAMES: [&str; 6] = ["license", "licence", "copying", "notice", "unlicense", "copyright"];
/// The crate that carries the demo model, and the model's card, which names its licence.
const CARRIER: &str = "cenote-console";
const CARD: &str = "models/demo/README.md";
const RULE: &str = "--------------------------------------------------------------------------------";

/// The collection.
///
/// # Errors
/// A crate has neither a text nor an expression whose usual text is at hand.
pub fn text(root: &Path, crates: &[Crate]) -> Result<String, String> {
    let mut groups: BTreeMap<[u8; 32], (String, Vec<String>)> = BTreeMap::new();
    let mut bare = Vec::new();
    for one in crates.iter().filter(|one| !one.is_ours()) {
        let texts = texts_of(&one.folder)?;
        let name = format!("{} {} ({})", one.name, one.version, one.license);
        if texts.is_empty() {
            bare.push((name, one));
            continue;
        }
        for text in texts {
            let key: [u8; 32] = Sha256::digest(text.split_whitespace().collect::<Vec<_>>().join(" ")).into();
            groups.entry(key).or_insert_with(|| (text, Vec::new())).1.push(name.clone());
        }
    }
    let mut all = String::from("Licences of the crates that Cenote links, each with the crates that are under it.\n");
    let mut groups: Vec<(String, Vec<String>)> = groups.into_values().collect();
    groups.sort_by(|one, other| one.1.cmp(&other.1).then_with(|| one.0.cmp(&other.0)));
    for (text, names) in groups {
        write!(all, "\n{RULE}\n{}\n{RULE}\n\n{}\n", names.join("\n"), text.trim_end()).expect("a string");
    }
    for (name, one) in bare {
        let usual = usual(root, &one.license)
            .ok_or_else(|| format!("{name}: its archive has no text of a licence, and none is known for it"))?;
        let authors = if one.authors.is_empty() { "its authors".to_owned() } else { one.authors.join(", ") };
        let head = format!("{name}, by {authors}; its archive has no text, this is the usual one");
        write!(all, "\n{RULE}\n{head}\n{RULE}\n\n{}\n", usual.trim_end()).expect("a string");
    }
    if crates.iter().any(|one| one.name == CARRIER) {
        let head = "The demo model, which the command carries (CC-BY-SA-4.0); its card:";
        write!(all, "\n{RULE}\n{head}\n{RULE}\n\n{}", read_lossy(&root.join(CARD))?).expect("a string");
    }
    Ok(all)
}

fn texts_of(folder: &Path) -> Result<Vec<String>, String> {
    let is_license = |name: &String| {
        let name = name.to_lowercase();
        NAMES.iter().any(|start| name.starts_with(start)) && !name.ends_with(".rs") && !name.ends_with(".html")
    };
    let names = names_in(folder)?.into_iter().filter(is_license);
    names.map(|name| folder.join(name)).filter(|path| path.is_file()).map(|path| read_lossy(&path)).collect()
}

/// The text of an expression that offers one of this project's own licences.
fn usual(root: &Path, expression: &str) -> Option<String> {
    let offers = |name: &str| expression.split([' ', '/', '(', ')']).any(|word| word == name);
    let file = [("MIT", "LICENSE-MIT"), ("Apache-2.0", "LICENSE-APACHE")].into_iter().find(|(name, _)| offers(name))?.1;
    let text = read_lossy(&root.join(file)).ok()?;
    // The line of copyright is that of this project.
    Some(text.lines().filter(|line| !line.starts_with("Copyright")).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    fn made(folder: &Path, name: &str, license: &str, text: Option<&str>) -> Crate {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        if let Some(text) = text {
            fs::write(folder.join("LICENSE-MIT"), text).expect("a file");
        }
        Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.to_owned(),
            repository: None,
            authors: vec![format!("author of {name}")],
            checksum: Some("00".to_owned()),
            folder,
            uses: BTreeSet::new(),
        }
    }

    #[test]
    fn each_text_stands_once_and_a_crate_without_one_gets_the_usual() {
        let folder = std::env::temp_dir().join(format!("cenote-licenses-{}", std::process::id()));
        let crates = [
            made(&folder, "a", "MIT", Some("the text\nof a licence")),
            made(&folder, "b", "MIT", Some("the text of\na licence\n")),
            made(&folder, "c", "MIT OR Apache-2.0", None),
        ];
        let root = crate::repository();
        let all = text(&root, &crates).expect("all have one");
        assert_eq!(all.matches("of a licence").count() + all.matches("text of\n").count(), 1, "{all}");
        assert!(all.contains("a 1.0.0 (MIT)\nb 1.0.0 (MIT)\n"));
        assert!(all.contains("c 1.0.0 (MIT OR Apache-2.0), by author of c"));
        assert!(all.contains("Permission is hereby granted") && !all.contains("CC-BY-SA"));
        let carrier = Crate { checksum: None, ..made(&folder, CARRIER, "MIT", None) };
        assert!(text(&root, &[carrier]).expect("its card is there").contains("under CC BY-SA 4.0"));
        let unknown = [made(&folder, "d", "ISC", None)];
        assert!(text(&root, &unknown).is_err_and(|reason| reason.starts_with("d 1.0.0")));
        fs::remove_dir_all(folder).expect("it was made");
    }
}
