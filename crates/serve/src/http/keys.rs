//! The API keys of a front without tenants, and the salt that each adds to the names of its blocks.

use crate::random;
use crate::tenants::TenantState;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One key.
#[derive(Clone)]
struct ApiKey {
    secret: String,
    salt: Option<String>,
}

/// The keys of a front. Without a key, all clients are served.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<ApiKey>);

impl std::fmt::Debug for ApiKeys {
    /// Hides the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

impl ApiKeys {
    /// Adds a key without a salt: its requests share KV with those of other such keys.
    #[must_use]
    pub fn with(mut self, secret: impl Into<String>) -> Self {
        self.0.push(ApiKey { secret: secret.into(), salt: None });
        self
    }

    /// Parses a file of keys: on each line a key and, after white space, optionally its salt. Keys
    /// with the same salt share KV. Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// Names the line, but never its content: no key, more than two words, or a duplicate key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Self::default();
        let mut seen = BTreeSet::new();
        for (number, line) in (1..).zip(text.lines()) {
            let mut words = line.split_whitespace();
            let Some(secret) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let salt = words.next().map(str::to_owned);
            if words.next().is_some() {
                return Err(format!("line {number} has more than a key and a salt"));
            }
            if !seen.insert(secret) {
                return Err(format!("line {number} repeats the key of an earlier line"));
            }
            keys.0.push(ApiKey { secret: secret.to_owned(), salt });
        }
        if keys.0.is_empty() { Err("has no key".to_owned()) } else { Ok(keys) }
    }

    /// Whether all clients are served, with any key.
    pub(super) const fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// The key that a client sent. The comparison takes the same time however much of a key is
    /// right.
    pub(super) fn find(&self, given: &[u8]) -> Option<Client> {
        let mut found = None;
        for key in &self.0 {
            if random::secrets_equal(given, key.secret.as_bytes()) {
                found = Some(Client { salt: key.salt.clone(), ..Client::default() });
            }
        }
        found
    }
}

/// What a request's key says of its sender; an extension of the request.
#[derive(Clone, Default)]
pub(super) struct Client {
    /// Salt of its key.
    pub(super) salt: Option<String>,
    pub(super) tenant: Option<Arc<TenantState>>,
    /// Its name for the request.
    pub(super) label: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_key_and_maybe_a_salt() {
        let keys = ApiKeys::parse("# staff\n\nalpha\n  beta   red \nsk-#1\tblue\n").expect("three keys");
        let salt = |key: &str| keys.find(key.as_bytes()).map(|client| client.salt);
        assert_eq!(salt("alpha"), Some(None));
        assert_eq!(salt("beta"), Some(Some("red".to_owned())));
        assert_eq!(salt("sk-#1"), Some(Some("blue".to_owned())));
        assert_eq!(salt("red"), None);
        assert_eq!(salt(""), None);
        assert!(!keys.is_open() && ApiKeys::default().is_open());
    }

    #[test]
    fn a_wrong_file_is_refused_by_line_without_its_secrets() {
        for (text, said) in [
            ("", "has no key"),
            ("# only words\n", "has no key"),
            ("a b\nsecret salt more", "line 2 has more than a key and a salt"),
            ("secret\nb\nsecret x", "line 3 repeats the key of an earlier line"),
        ] {
            assert_eq!(ApiKeys::parse(text).err().as_deref(), Some(said));
        }
        assert!(!format!("{:?}", ApiKeys::default().with("secret")).contains("secret"));
    }
}
