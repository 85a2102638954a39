//! The keys of a configuration, with a record of those that a plan has read.

use super::unread;
use crate::error::PlanError;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Sizes of heads, vectors and states are below this, so that products of three fit 64 bits.
const SIZE_MAX: u64 = 1 << 20;
/// Numbers of tokens are below this.
const TOKENS_MAX: u64 = 1 << 40;

/// Sizes that a class has if its file names none: published files leave them out.
const DEFAULTS: [(&str, &str, u64); 5] = [
    ("gemma3", "num_attention_heads", 8),
    ("gemma3", "num_key_value_heads", 4),
    ("gemma3", "head_dim", 256),
    ("mamba2", "expand", 2),
    ("deepseek_v32", "index_head_dim", 128),
];

/// Objects with the text model's keys.
const INNER: [&str; 4] = ["text_config", "llm_config", "language_config", "thinker_config"];

/// Keys of the configuration's objects, the innermost first.
pub(crate) struct Keys<'a> {
    objects: Vec<&'a Map<String, Value>>,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Keys<'a> {
    /// The keys of the text model, and those beside it.
    pub fn of(root: &'a Map<String, Value>) -> Self {
        let mut objects = vec![root];
        // Models that hear and speak have the text model within the one that thinks.
        while let Some(inner) = INNER.iter().find_map(|key| objects[0].get(*key)?.as_object()) {
            objects.insert(0, inner);
        }
        Self { objects, read: RefCell::default() }
    }

    /// Keys that are there and were not read, with their values.
    pub fn unread(&self) -> Vec<(&'a str, &'a Value)> {
        let read = self.read.borrow();
        let all = self.objects.iter().flat_map(|object| object.iter());
        all.filter(|(key, _)| !read.contains(*key)).map(|(key, value)| (key.as_str(), value)).collect()
    }

    /// Records that a key is settled by others.
    pub fn settle(&self, key: &str) {
        self.read.borrow_mut().insert(key.to_owned());
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.settle(key);
        self.peek(key)
    }

    /// A key's value, without a record.
    pub fn peek(&self, key: &str) -> Option<&'a Value> {
        self.objects.iter().find_map(|object| object.get(key).filter(|value| !value.is_null()))
    }

    /// Refuses an object with a key that may change what a layer keeps and is none of these.
    pub fn only(&self, key: &str, known: &[&str]) -> Result<(), PlanError> {
        let Some(Value::Object(object)) = self.peek(key) else { return Ok(()) };
        let is_odd = |(inner, value): &(&String, &Value)| {
            !known.contains(&inner.as_str()) && !unread::is_off(value) && unread::concerns(inner)
        };
        match object.iter().find(is_odd) {
            Some((inner, _)) => Err(PlanError::Unread { key: format!("{key}.{inner}") }),
            None => Ok(()),
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.peek(key).is_some()
    }

    /// The first of these keys that is there, as a text.
    pub fn text(&self, keys: &[&str]) -> Result<Option<&'a str>, PlanError> {
        let Some(key) = keys.iter().find(|key| self.has(key)) else { return Ok(None) };
        let text = self.get(key).and_then(Value::as_str).ok_or_else(|| self.invalid(key, "a text"))?;
        Ok(Some(text))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, PlanError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.invalid(key, "true or false")),
        }
    }

    pub fn list(&self, key: &str) -> Option<&'a Vec<Value>> {
        self.get(key)?.as_array()
    }

    /// The class of the text model, without the suffix of its nested form.
    pub fn class(&self) -> &'a str {
        let class = self.get("model_type").and_then(Value::as_str).unwrap_or("");
        class.strip_suffix("_text").unwrap_or(class)
    }

    pub fn invalid(&self, key: &str, expected: impl Into<String>) -> PlanError {
        let value = self.peek(key).map(Value::to_string).unwrap_or_default();
        PlanError::Invalid { key: key.to_owned(), value, expected: expected.into() }
    }

    /// The first of these keys that is there, as a whole number below a limit.
    fn below(&self, limit: u64, keys: &[&str]) -> Result<Option<u64>, PlanError> {
        let Some(key) = keys.iter().find(|key| self.has(key)) else {
            let class = self.class();
            let default = DEFAULTS.iter().find(|(of, key, _)| *of == class && keys.contains(key));
            return Ok(default.map(|(_, _, value)| *value));
        };
        let value = self.get(key);
        // The same number by other names is no other statement.
        keys.iter().filter(|other| self.peek(other) == value).for_each(|other| self.settle(other));
        match value.and_then(Value::as_u64).filter(|number| *number < limit) {
            Some(number) => Ok(Some(number)),
            None => Err(self.invalid(key, format!("a whole number below {limit}"))),
        }
    }

    pub fn number(&self, keys: &[&str]) -> Result<Option<u64>, PlanError> {
        self.below(SIZE_MAX, keys)
    }

    pub fn tokens(&self, keys: &[&str]) -> Result<Option<u64>, PlanError> {
        self.below(TOKENS_MAX, keys)
    }

    fn positive(&self, number: Option<u64>, keys: &[&str]) -> Result<u64, PlanError> {
        match number {
            Some(0) => Err(self.invalid(keys[0], "above zero")),
            Some(number) => Ok(number),
            None => Err(PlanError::Missing(keys[0].to_owned())),
        }
    }

    pub fn needed(&self, keys: &[&str]) -> Result<u64, PlanError> {
        self.positive(self.number(keys)?, keys)
    }

    pub fn needed_tokens(&self, keys: &[&str]) -> Result<u64, PlanError> {
        self.positive(self.tokens(keys)?, keys)
    }

    /// As [`Self::number`], for a key whose value may be a list with a number for each layer.
    pub fn of_layer(&self, layer: usize, keys: &[&str]) -> Result<Option<u64>, PlanError> {
        let Some((key, list)) = keys.iter().find_map(|key| Some((*key, self.peek(key)?.as_array()?))) else {
            return self.number(keys);
        };
        self.settle(key);
        match list.get(layer).and_then(Value::as_u64).filter(|number| *number < SIZE_MAX) {
            Some(number) => Ok(Some(number)),
            None => Err(self.invalid(key, format!("a list with a whole number for layer {layer}"))),
        }
    }
}
