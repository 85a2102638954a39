//! A bill of materials in CycloneDX's JSON (ECMA-424, version 1.5): the crates that a program links, their
//! checksums and licences, and which links which.

use super::metadata::Crate;
use serde_json::{Value, json};

/// The document about the package `name`, made at `time` (seconds since 1970).
pub fn text(crates: &[Crate], name: &str, time: u64) -> String {
    let main = crates.iter().find(|one| one.name == name);
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": rfc3339(time),
            "tools": {"components": [{"type": "application", "name": "cargo xtask", "version": env!("CARGO_PKG_VERSION")}]},
            "component": main.map(|one| component(one, "application")),
        },
        "components": crates.iter().filter(|one| one.name != name).map(|one| component(one, "library")).collect::<Vec<_>>(),
        "dependencies": crates.iter().map(dependency).collect::<Vec<_>>(),
    });
    serde_json::to_string_pretty(&document).expect("it has no odd keys") + "\n"
}

/// The document `text` with a package of Debian, its version and its licence.
///
/// # Errors
/// The text is no such document.
pub fn with_debian(text: &str, name: &str, version: &str, license: &str) -> Result<String, String> {
    let failed = "the bill of materials has no components";
    let mut document: Value = serde_json::from_str(text).map_err(|error| format!("{failed}: {error}"))?;
    let url = format!("pkg:deb/debian/{name}@{}", version.replace('+', "%2B"));
    let made = json!({
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
        "licenses": [{"expression": license}],
    });
    document["components"].as_array_mut().ok_or(failed)?.push(made);
    Ok(serde_json::to_string_pretty(&document).expect("it has no odd keys") + "\n")
}

fn component(one: &Crate, kind: &str) -> Value {
    let url = reference(&one.name, &one.version);
    let mut made = json!({
        "type": kind,
        "bom-ref": url,
        "name": one.name,
        "version": one.version,
        "purl": url,
        "licenses": [{"expression": expression(&one.license)}],
    });
    if let Some(checksum) = &one.checksum {
        made["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(repository) = &one.repository {
        made["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    made
}

fn dependency(one: &Crate) -> Value {
    let uses: Vec<String> = one.uses.iter().map(|(name, version)| reference(name, version)).collect();
    json!({"ref": reference(&one.name, &one.version), "dependsOn": uses})
}

/// A package URL.
fn reference(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// Old crates write a slash for OR.
fn expression(license: &str) -> String {
    license.replace('/', " OR ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A time as in RFC 3339, in UTC.
pub fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days of the era that begins on 1 March of the year 0, as in Howard Hinnant's `civil_from_days`.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_751_008), "2026-11-27T03:43:28Z");
    }

    #[test]
    fn a_package_of_debian_is_a_component() {
        let bill = with_debian(&text(&[], "x", 0), "libc6", "2.41-12+deb13u5", "LGPL-2.1-or-later");
        let bill: Value = serde_json::from_str(&bill.expect("a bill")).expect("JSON");
        assert_eq!(bill["components"][0]["purl"], "pkg:deb/debian/libc6@2.41-12%2Bdeb13u5");
        assert!(with_debian("{}", "libc6", "2", "MIT").is_err());
    }

    #[test]
    fn old_expressions_are_of_today() {
        assert_eq!(expression("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(expression("MIT OR Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(reference("zstd-sys", "2.0.16+zstd.1.5.7"), "pkg:cargo/zstd-sys@2.0.16%2Bzstd.1.5.7");
    }
}
