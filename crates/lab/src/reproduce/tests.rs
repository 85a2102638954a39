//! Tests of the registry, of what runs may see, and of the committed document.

use super::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn rows_have_names_of_their_own_and_something_to_compare() {
    let mut names = BTreeSet::new();
    for paper in PAPERS {
        for printed in paper.printed {
            assert!(names.insert(printed.id), "{} is there twice", printed.id);
            assert!(is_below(printed.id, paper.id), "{} is no row of {}", printed.id, paper.id);
            let by = paper.experiments.iter().filter(|experiment| experiment.has(printed.id)).count();
            assert!(by == 1 || (by == 0 && printed.is_arithmetic), "{} has {by} experiments", printed.id);
            let len = printed.values.len();
            assert!(printed.axis.is_none_or(|(_, at)| at.len() == len), "{}", printed.id);
            let middles: Vec<f64> = printed.ranges.iter().map(|(least, most)| f64::midpoint(*least, *most)).collect();
            assert!(middles.is_empty() || middles == printed.values, "{}", printed.id);
            assert!(printed.names.is_empty() || printed.names.len() == len, "{}", printed.id);
        }
    }
}

#[test]
fn names_select_rows() {
    let ids = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Selection::new(&names).map(|selection| {
            PAPERS.iter().flat_map(|paper| paper.printed.iter().filter(|row| selection.has(paper, row.id))).count()
        })
    };
    let all: usize = PAPERS.iter().map(|paper| paper.printed.len()).sum();
    assert_eq!((ids(&[]), ids(&["all"])), (Ok(all), Ok(all)));
    assert_eq!(ids(&["speckv.table8.batch"]), Ok(1));
    assert!(ids(&["speckv.table8"]).expect("a table") > 1);
    assert!(ids(&["speckv.prefetch"]).expect("an experiment") > 10);
    assert_eq!(ids(&["all", "speckv.table"]), Err("speckv.table".to_owned()));
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// The door file of a paper names its printed values once, for the registry. No experiment may.
#[test]
fn no_run_reads_what_a_paper_prints() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/reproduce");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let mut doors = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file");
        let uses = text.matches("paper::").count();
        let depth = file.strip_prefix(&folder).expect("below the folder").components().count();
        let is_door = depth == 1 && folder.join(file.file_stem().expect("a name")).join("paper.rs").exists();
        doors += usize::from(is_door);
        if is_door {
            assert_eq!(uses, 1, "{}", file.display());
            assert!(text.contains("printed: paper::PRINTED"), "{}", file.display());
        } else if !file.ends_with("tests.rs") {
            assert_eq!(uses, 0, "{}", file.display());
            assert!(!text.contains(".printed") && !text.contains("PAPERS"), "{}", file.display());
        }
    }
    assert_eq!(doors, PAPERS.len());
}

/// The quick experiments give the lines of the committed document, on one thread and on two.
#[test]
fn the_document_has_what_quick_experiments_compute() {
    let document = include_str!("../../../../docs/evidence/papers.md");
    let quick = || PAPERS.iter().flat_map(|paper| paper.experiments.iter().filter(|experiment| experiment.is_quick));
    let names: Vec<String> = quick().map(|experiment| experiment.id.to_owned()).collect();
    let selection = Selection::new(&names).expect("names of experiments");
    let [one, two] = [1, 2].map(|threads| run(&selection, &Context { seed: 1 }, threads, &|_, run| run()));
    let lines = |papers: &[Reproduction]| -> Vec<String> {
        papers.iter().flat_map(|paper| paper.rows.iter().map(report::markdown_line)).collect()
    };
    let one_papers = &one;
    let (one, two) = (lines(one_papers), lines(&two));
    assert!(one.len() >= names.len() && one == two);
    for row in one_papers.iter().flat_map(|paper| &paper.rows).filter(|row| !row.ours.is_empty()) {
        assert!(row.sensitivity.is_empty() != row.fixed.is_empty(), "{}: the parameters that it depends on", row.id);
    }
    let stale: Vec<&String> = one.iter().filter(|line| !document.contains(line.as_str())).collect();
    assert!(
        stale.is_empty(),
        "docs/evidence/papers.md is stale: run `cenote-lab reproduce all --markdown`\n{stale:#?}"
    );
}
