//! The file of tenants (docs/guides/serve.md#tenants). Errors name the line and the field, and show no
//! value: values are secrets.

use super::{Entry, KeyDigest, OTHER, digest_of};
use cenote_base::TenantKey;
use cenote_base::units::ByteSize;
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// Most tenants of a file. Each salt takes a row of the region, which has 256.
/// The engine's own part takes one row of a region's 256.
pub(super) const TENANTS_MAX: usize = 255;
/// Longest name of a tenant, which is a label of metrics and a part of a label in the region.
const NAME_BYTES_MAX: usize = 32;
/// Most keys of a tenant: each is compared with each request's.
const KEYS_MAX: usize = 16;

/// The tenants of a front, and the keys of its metrics.
pub struct TenantFile {
    pub(super) entries: Vec<Entry>,
    pub(super) metrics: Vec<KeyDigest>,
}

impl std::fmt::Debug for TenantFile {
    /// Hides the digests of keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
        f.debug_struct("TenantFile").field("tenants", &names).finish_non_exhaustive()
    }
}

impl TenantFile {
    /// Parses a file of tenants.
    ///
    /// # Errors
    /// A sentence that begins with the line and names the wrong field, but shows no value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let reader = Reader { text };
        let parsed = DeTable::parse(text).map_err(|error| {
            let fact = format!("no TOML: {}", error.message());
            error.span().map_or_else(|| fact.clone(), |span| reader.at(&span, &fact))
        })?;
        reader.file(parsed.get_ref())
    }

    /// The first tenant with a limit of its bytes in a region.
    #[must_use]
    pub fn limited(&self) -> Option<&str> {
        let limited = self.entries.iter().find(|entry| entry.quota_bytes > 0 || entry.kept_bytes > 0);
        limited.map(|entry| entry.name.as_str())
    }
}

type Field<'i> = Spanned<DeValue<'i>>;

/// A text that is being read, for the lines of errors.
struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn at(&self, span: &Range<usize>, fact: &str) -> String {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        format!("line {line}: {fact}")
    }

    fn wrong<T>(&self, span: &Range<usize>, name: &str, fact: &str) -> Result<T, String> {
        Err(self.at(span, &format!("{name}: {fact}")))
    }

    fn file(&self, table: &DeTable<'_>) -> Result<TenantFile, String> {
        let (mut tenants, mut metrics) = (None, None);
        for (key, value) in table.iter() {
            let DeValue::Table(inner) = value.get_ref() else {
                return self.wrong(&key.span(), key.get_ref(), "the file has only tables: [tenant.NAME] and [metrics]");
            };
            match key.get_ref().as_ref() {
                "tenant" => tenants = Some(inner),
                "metrics" => metrics = Some(inner),
                other => return self.wrong(&key.span(), other, "no such table; there are [tenant.NAME] and [metrics]"),
            }
        }
        let mut owners = BTreeMap::new();
        let metrics = metrics.map(|table| self.metrics(table, &mut owners)).transpose()?;
        let mut entries: Vec<(Entry, Range<usize>)> = Vec::new();
        for (key, value) in tenants.into_iter().flat_map(|table| table.iter()) {
            let entry = self.tenant(key, value, &mut owners)?;
            // One part of the region has one pair of limits.
            let twin = entries.iter().find(|(other, _)| other.key == entry.key).map(|(other, _)| other);
            if let Some(twin) =
                twin.filter(|twin| (twin.quota_bytes, twin.kept_bytes) != (entry.quota_bytes, entry.kept_bytes))
            {
                let fact = format!("it has the salt of `{}`, so `quota` and `keep` must be the same", twin.name);
                return self.wrong(&key.span(), &format!("tenant.{}", entry.name), &fact);
            }
            entries.push((entry, key.span()));
        }
        match entries.get(TENANTS_MAX) {
            Some((_, span)) => self.wrong(span, "tenant", &format!("more than {TENANTS_MAX} tenants")),
            None if entries.is_empty() => Err("there is no tenant; add a table [tenant.NAME] with `keys`".to_owned()),
            None => {
                let entries = entries.into_iter().map(|(entry, _)| entry).collect();
                Ok(TenantFile { entries, metrics: metrics.unwrap_or_default() })
            }
        }
    }

    fn metrics(&self, table: &DeTable<'_>, owners: &mut BTreeMap<KeyDigest, String>) -> Result<Vec<KeyDigest>, String> {
        let mut digests = Vec::new();
        for (key, value) in table.iter() {
            let name = format!("metrics.{}", key.get_ref());
            match key.get_ref().as_ref() {
                "keys" => self.keys(&name, value, &mut digests)?,
                "key_sha256" => self.digests(&name, value, &mut digests)?,
                _ => return self.wrong(&key.span(), &name, "no such setting; there are `keys` and `key_sha256`"),
            }
        }
        self.own(owners, &digests, "metrics")
    }

    fn tenant(
        &self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Field<'_>,
        owners: &mut BTreeMap<KeyDigest, String>,
    ) -> Result<Entry, String> {
        let name = key.get_ref().as_ref();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) || name == OTHER {
            let fact = format!(
                "a tenant's name has 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` or `-`, and is not `{OTHER}`"
            );
            return self.wrong(&key.span(), "tenant", &fact);
        }
        let DeValue::Table(table) = value.get_ref() else {
            return self.wrong(&key.span(), &format!("tenant.{name}"), "it must be a table, [tenant.NAME]");
        };
        let mut entry = Entry {
            name: name.to_owned(),
            digests: Vec::new(),
            key: TenantKey::of_name(name),
            quota_bytes: 0,
            kept_bytes: 0,
            priority: 0,
            requests_max: None,
        };
        let mut digests = Vec::new();
        for (key, value) in table.iter() {
            let field = format!("tenant.{name}.{}", key.get_ref());
            match key.get_ref().as_ref() {
                "keys" => self.keys(&field, value, &mut digests)?,
                "key_sha256" => self.digests(&field, value, &mut digests)?,
                "salt" => match value.get_ref().as_str() {
                    Some(salt) if !salt.is_empty() => entry.key = TenantKey::of_salt(salt),
                    _ => return self.wrong(&value.span(), &field, "it must be a text that is not empty"),
                },
                "quota" => entry.quota_bytes = self.size(&field, value)?,
                "keep" => entry.kept_bytes = self.size(&field, value)?,
                "priority" => entry.priority = self.number(&field, value)?,
                "max_requests" => match self.number(&field, value)? {
                    0 => return self.wrong(&value.span(), &field, "0 would refuse all; at least 1"),
                    most => entry.requests_max = Some(most as usize),
                },
                _ => {
                    let fact = "no such setting; there are `keys`, `key_sha256`, `salt`, `quota`, `keep`, `priority` and \
                                `max_requests`";
                    return self.wrong(&key.span(), &field, fact);
                }
            }
        }
        if digests.is_empty() {
            let fact = "it has no key; give `keys` or `key_sha256`";
            return self.wrong(&key.span(), &format!("tenant.{name}"), fact);
        }
        if entry.quota_bytes > 0 && entry.kept_bytes > entry.quota_bytes {
            return self.wrong(&key.span(), &format!("tenant.{name}.keep"), "it is more than `quota`");
        }
        entry.digests = self.own(owners, &digests, name)?;
        Ok(entry)
    }

    /// Enters keys of one owner. A key opens one thing.
    fn own(
        &self,
        owners: &mut BTreeMap<KeyDigest, String>,
        digests: &[(KeyDigest, Range<usize>)],
        owner: &str,
    ) -> Result<Vec<KeyDigest>, String> {
        for (digest, span) in digests {
            if let Some(other) = owners.insert(*digest, owner.to_owned()) {
                return self.wrong(span, owner, &format!("this key is also a key of `{other}`"));
            }
        }
        match digests.get(KEYS_MAX) {
            Some((_, span)) => self.wrong(span, owner, &format!("more than {KEYS_MAX} keys")),
            None => Ok(digests.iter().map(|(digest, _)| *digest).collect()),
        }
    }

    fn keys(&self, name: &str, value: &Field<'_>, digests: &mut Vec<(KeyDigest, Range<usize>)>) -> Result<(), String> {
        for item in self.array(name, value)?.iter() {
            match item.get_ref().as_str() {
                // A header has no other characters.
                Some(key) if !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()) => {
                    digests.push((digest_of(key.as_bytes()), item.span()));
                }
                _ => {
                    return self.wrong(
                        &item.span(),
                        name,
                        "a key is a text of visible ASCII characters without spaces",
                    );
                }
            }
        }
        Ok(())
    }

    fn digests(
        &self,
        name: &str,
        value: &Field<'_>,
        digests: &mut Vec<(KeyDigest, Range<usize>)>,
    ) -> Result<(), String> {
        for item in self.array(name, value)?.iter() {
            let mut digest = KeyDigest::default();
            let decoded = item.get_ref().as_str().map(|text| hex::decode_to_slice(text, &mut digest));
            if decoded != Some(Ok(())) {
                let fact = "a digest has 64 hexadecimal digits, as `printf %s KEY | sha256sum` prints";
                return self.wrong(&item.span(), name, fact);
            }
            digests.push((digest, item.span()));
        }
        Ok(())
    }

    fn array<'f, 'i>(&self, name: &str, value: &'f Field<'i>) -> Result<&'f DeArray<'i>, String> {
        match value.get_ref().as_array() {
            Some(array) => Ok(array),
            None => self.wrong(&value.span(), name, "it must be an array of texts"),
        }
    }

    /// A size above 0.
    fn size(&self, name: &str, value: &Field<'_>) -> Result<u64, String> {
        let text = value.get_ref().as_str().or_else(|| value.get_ref().as_integer().map(|number| number.as_str()));
        match text.and_then(|text| text.parse::<ByteSize>().ok()) {
            Some(ByteSize(bytes)) if bytes > 0 => Ok(bytes),
            _ => self.wrong(&value.span(), name, "it must be a size above 0, like \"2GiB\"; leave it out for none"),
        }
    }

    fn number(&self, name: &str, value: &Field<'_>) -> Result<u32, String> {
        let number = value.get_ref().as_integer().filter(|number| number.radix() == 10);
        match number.and_then(|number| number.as_str().parse().ok()) {
            Some(number) => Ok(number),
            None => self.wrong(&value.span(), name, "it must be a whole number from 0 on"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_all_settings() {
        let text = "# staff\n[metrics]\nkeys = [\"prometheus\"]\n\n[tenant.\"red.1\"]\nkeys = [\"a\", \"b\"]\nsalt = \"s\"\n\
                    quota = \"2GiB\"\nkeep = 1048576\npriority = 3\nmax_requests = 8\n[tenant.blue]\nkeys = [\"c\"]\n";
        let file = TenantFile::parse(text).expect("it is sound");
        let [blue, red] = &file.entries[..] else { panic!("two tenants: {file:?}") };
        assert_eq!((red.name.as_str(), red.digests.len(), red.key), ("red.1", 2, TenantKey::of_salt("s")));
        assert_eq!((red.quota_bytes, red.kept_bytes, red.priority, red.requests_max), (2 << 30, 1 << 20, 3, Some(8)));
        assert_eq!((blue.name.as_str(), blue.key, blue.priority), ("blue", TenantKey::of_name("blue"), 0));
        assert_eq!((blue.quota_bytes, blue.kept_bytes, blue.requests_max), (0, 0, None));
        assert_eq!((file.metrics.len(), file.limited()), (1, Some("red.1")));
    }

    /// What is said of a file whose second line, in a table of a tenant, is this.
    fn said(line: &str) -> String {
        let text = format!("[tenant.a]\n{line}\nkeys = [\"other-secret\"]\n");
        TenantFile::parse(&text).expect_err(line)
    }

    #[test]
    fn each_wrong_field_is_named_with_its_line_and_without_its_value() {
        for (line, name) in [
            ("key = [\"s3cret\"]", "tenant.a.key:"),
            ("key_sha256 = \"s3cret\"", "tenant.a.key_sha256:"),
            ("key_sha256 = [\"s3cret\"]", "tenant.a.key_sha256:"),
            ("salt = \"\"", "tenant.a.salt:"),
            ("salt = 5", "tenant.a.salt:"),
            ("quota = \"s3cret\"", "tenant.a.quota:"),
            ("quota = 0", "tenant.a.quota:"),
            ("quota = \"1GB\"", "tenant.a.quota:"),
            ("keep = -1", "tenant.a.keep:"),
            ("priority = -1", "tenant.a.priority:"),
            ("priority = \"s3cret\"", "tenant.a.priority:"),
            ("max_requests = 0", "tenant.a.max_requests:"),
            ("max_requests = 1.5", "tenant.a.max_requests:"),
            ("keys = [s3cret]", "no TOML"),
        ] {
            let said = said(line);
            assert!(said.starts_with("line 2: ") && said.contains(name), "{line}: {said}");
            assert!(!said.contains("s3cret") && !said.contains("other-secret"), "{line}: {said}");
        }
    }

    #[test]
    fn wrong_keys_names_and_tables_are_named() {
        let long = format!("[tenant.{}]\nkeys = [\"a\"]\n", "n".repeat(NAME_BYTES_MAX + 1));
        let many: Vec<String> = (0..=KEYS_MAX).map(|key| format!("\"{key}\"")).collect();
        let many = format!("[tenant.a]\nkeys = [{}]\n", many.join(", "));
        for (text, expected) in [
            ("", "there is no tenant"),
            ("[metrics]\nkeys = [\"m\"]\n", "there is no tenant"),
            ("a = 1\n", "line 1: a:"),
            ("[tenants.a]\n", "line 1: tenants:"),
            ("[tenant]\na = 1\n", "line 2: tenant.a:"),
            ("[tenant.\"a b\"]\nkeys = [\"k\"]\n", "line 1: tenant:"),
            ("[tenant.other]\nkeys = [\"k\"]\n", "line 1: tenant:"),
            (&long, "line 1: tenant:"),
            ("[tenant.a]\nsalt = \"s\"\n", "line 1: tenant.a: it has no key"),
            ("[tenant.a]\nkeys = []\n", "line 1: tenant.a: it has no key"),
            ("[tenant.a]\nkeys = [\n  \"k\",\n  \"two words\",\n]\n", "line 4: tenant.a.keys:"),
            ("[tenant.a]\nkeys = \"k\"\n", "line 2: tenant.a.keys: it must be an array"),
            (&many, "line 2: a: more than 16 keys"),
            ("[tenant.a]\nkeys = [\"k\"]\n[tenant.b]\nkeys = [\"k\"]\n", "line 4: b: this key is also a key of `a`"),
            (
                "[metrics]\nkeys = [\"k\"]\n[tenant.b]\nkeys = [\"k\"]\n",
                "line 4: b: this key is also a key of `metrics`",
            ),
            ("[metrics]\nkey = [\"k\"]\n[tenant.b]\nkeys = [\"l\"]\n", "line 2: metrics.key:"),
            ("[tenant.a]\nkeys = [\"k\"]\n[tenant.a]\nkeys = [\"l\"]\n", "line 3: no TOML"),
            ("[tenant.a]\nkeys = [\"k\"]\nquota = 5\nkeep = 6\n", "line 1: tenant.a.keep:"),
            (
                "[tenant.a]\nkeys = [\"k\"]\nsalt = \"s\"\nquota = 5\n[tenant.b]\nkeys = [\"l\"]\nsalt = \"s\"\n",
                "line 5: tenant.b: it has the salt of `a`",
            ),
        ] {
            let said = TenantFile::parse(text).expect_err(text);
            assert!(said.starts_with(expected), "{text}: {said}");
        }
    }
}
