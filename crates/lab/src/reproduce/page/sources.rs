//! Where the papers are.

/// A paper's short name, authors and place.
pub(super) struct Source {
    /// Name on the page.
    pub name: &'static str,
    /// Its authors.
    pub authors: &'static str,
    /// Venue and identifier.
    pub place: &'static str,
    /// Its address; `None` if the text names none.
    pub link: Option<&'static str>,
}

/// The source of the paper with this id.
///
/// # Panics
/// Panics if the paper is not listed.
pub(super) fn of(id: &str) -> Source {
    match id {
        "speckv" => Source {
            name: "CXL-SpecKV",
            authors: "Dong Liu and Yanxuan Yu",
            place: "FPGA 2026, doi:10.1145/3748173.3779188",
            link: Some("https://doi.org/10.1145/3748173.3779188"),
        },
        "engram" => Source {
            name: "Engram pool",
            authors: "Ruiyang Ma, Teng Ma, Zhiyuan Su and others",
            place: "EuroMLSys 2026 (the text read here prints no identifier)",
            link: None,
        },
        "tract" => Source {
            name: "TraCT",
            authors: "Dongha Yoon, Younghoon Min, Hoshik Kim, Sam H. Noh and Jongryool Kim",
            place: "arXiv:2512.18194",
            link: Some("https://arxiv.org/abs/2512.18194"),
        },
        "oaken" => Source {
            name: "Oaken",
            authors: "Minsu Kim, Seongmin Hong, RyeoWook Ko and others",
            place: "ISCA 2025, doi:10.1145/3695053.3731019",
            link: Some("https://doi.org/10.1145/3695053.3731019"),
        },
        "cpen" => Source {
            name: "CPEN 511",
            authors: "Jiajun Huang and Tom Wang",
            place: "report of a course’s project (not published)",
            link: None,
        },
        _ => panic!("the page lacks the source of {id}"),
    }
}
