//! A client's wish that a request's KV stay in the region, in the forms that clients know.
//!
//! - `cenote.retain`: this server's own.
//! - `prompt_cache_retention` and `prompt_cache_options` (OpenAI), `cache_control` (Anthropic) and
//!   `nvext.cache_control` (Dynamo). Each keeps all of the request's blocks: a mark at a message does not end there.
//! - `kv_hints`: the envelope of actions that vLLM, Dynamo and SGLang agreed on. An action that is unknown or
//!   malformed is counted and does nothing, because senders of hints are ahead of servers.
//!
//! Of several wishes in one request the longest counts, with the largest priority.

use super::request::{Message, type_name};
use super::{ApiError, Body};
use cenote_base::engine::Retain;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Longest time that KV may be kept without another request, in seconds: OpenAI's.
const SECONDS_MAX: u64 = 24 * 3600;
/// Largest priority, as in SGLang.
const PRIORITY_MAX: u8 = 99;
/// Time of a `cache_control` without `ttl`, in seconds: Anthropic's.
const EPHEMERAL_SECONDS: u64 = 300;
/// Most actions of an envelope that are read.
const ACTIONS_MAX: usize = 64;

/// `cenote.retain`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetainField {
    /// From the request's end; 0 ends what earlier requests of the conversation asked for.
    pub seconds: u64,
    /// 0 to 99.
    #[serde(default)]
    pub priority: u8,
    /// A name for the conversation.
    #[serde(default)]
    pub session: Option<String>,
}

/// The wishes of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Seconds and priority; `None`: nothing was asked for.
    kept: Option<(u64, u8)>,
    /// The client's name for the conversation.
    session: Option<String>,
    /// Actions that this server does not know.
    pub unknown: u64,
}

impl Wishes {
    /// The wishes of a body, but for those in its messages.
    pub(super) fn of(body: &Body) -> Result<Self, ApiError> {
        let mut wishes = Self { session: named(body.extra.get("session_id")), ..Self::default() };
        if let Some(retain) = body.cenote.as_ref().and_then(|hints| hints.retain.as_ref()) {
            let seconds = checked_seconds("cenote.retain.seconds", retain.seconds)?;
            if retain.priority > PRIORITY_MAX {
                let fact = format!("{} is not in 0..={PRIORITY_MAX}", retain.priority);
                return Err(ApiError::invalid("cenote.retain.priority", fact));
            }
            wishes.add(seconds, retain.priority);
            wishes.session = retain.session.clone().filter(|name| !name.is_empty()).or(wishes.session);
        }
        if let Some(value) = given(&body.extra, "prompt_cache_retention") {
            match value.as_str() {
                Some("24h") => wishes.add(SECONDS_MAX, 0),
                // As without the field: until eviction takes it.
                Some("in_memory" | "in-memory") => {}
                _ => return Err(ApiError::invalid("prompt_cache_retention", "neither \"in_memory\" nor \"24h\"")),
            }
        }
        if let Some(options) = given(&body.extra, "prompt_cache_options")
            && let Some(ttl) = options.get("ttl").filter(|ttl| !ttl.is_null())
        {
            wishes.add(seconds_of("prompt_cache_options.ttl", ttl)?, 0);
        }
        if let Some(control) = given(&body.extra, "cache_control") {
            wishes.add(ephemeral("cache_control", control)?, 0);
        }
        if let Some(nvext) = given(&body.extra, "nvext")
            && let Some(control) = nvext.get("cache_control").filter(|control| !control.is_null())
        {
            let priority = nvext.pointer("/agent_hints/priority").and_then(Value::as_i64).unwrap_or(0);
            wishes.add(ephemeral("nvext.cache_control", control)?, clamped(priority));
        }
        if let Some(envelope) = given(&body.extra, "kv_hints") {
            wishes.add_actions(envelope);
        }
        Ok(wishes)
    }

    /// What to ask of the engine. `salts`: what the client shares KV with; requests of others are no turns of its
    /// conversations. `is_single`: several prompts of one request are not turns of one conversation.
    pub(crate) fn retain(&self, salts: (Option<&str>, Option<&str>), is_single: bool) -> Option<Retain> {
        let (seconds, priority) = self.kept?;
        let session = self.session.as_deref().filter(|_| is_single).map(|name| number(salts, name));
        Some(Retain { ms: seconds * 1000, priority, session })
    }

    /// Adds the `cache_control` of messages and of their parts.
    pub(super) fn add_messages(&mut self, messages: &[Message]) -> Result<(), ApiError> {
        for (at, message) in messages.iter().enumerate() {
            if let Some(control) = given(&message.extra, "cache_control") {
                self.add(ephemeral(&format!("messages[{at}].cache_control"), control)?, 0);
            }
            let parts = message.content.as_ref().and_then(Value::as_array);
            for (part, value) in parts.into_iter().flatten().enumerate() {
                if let Some(control) = value.get("cache_control").filter(|control| !control.is_null()) {
                    let name = format!("messages[{at}].content[{part}].cache_control");
                    self.add(ephemeral(&name, control)?, 0);
                }
            }
        }
        Ok(())
    }

    /// Adds the wishes of another part of the request.
    pub(super) fn add_all(&mut self, other: &Self) {
        if let Some((seconds, priority)) = other.kept {
            self.add(seconds, priority);
        }
        self.unknown += other.unknown;
    }

    fn add(&mut self, seconds: u64, priority: u8) {
        let (longest, largest) = self.kept.unwrap_or((0, 0));
        self.kept = Some((longest.max(seconds), largest.max(priority)));
    }

    fn add_actions(&mut self, envelope: &Value) {
        let Some(actions) = envelope.get("actions").and_then(Value::as_array) else {
            self.unknown += 1;
            return;
        };
        self.unknown += actions.len().saturating_sub(ACTIONS_MAX) as u64;
        for action in actions.iter().take(ACTIONS_MAX) {
            if self.add_action(action).is_none() {
                self.unknown += 1;
            }
        }
    }

    /// `None`: unknown or malformed.
    fn add_action(&mut self, action: &Value) -> Option<()> {
        let text = |name: &str| action.get(name).and_then(Value::as_str);
        let kind = text("action_type")?;
        let version = text("action_version")?;
        if version.split('.').next() != Some("1") {
            return None;
        }
        match kind.strip_prefix("kv.").unwrap_or(kind) {
            "retain" | "pin" => {
                let payload = action.get("payload")?;
                let seconds = payload.get("ttl_seconds")?.as_u64()?;
                let priority = payload.get("priority").filter(|priority| !priority.is_null());
                let priority = priority.map_or(Some(0), Value::as_i64)?;
                self.add(seconds.min(SECONDS_MAX), clamped(priority));
                self.session = named(payload.get("session_id")).or(self.session.take());
            }
            "demote" | "release" => self.add(0, 0),
            // Each request looks in all tiers, and shares what it computes.
            "fetch" | "prefetch" | "share" => {}
            _ => return None,
        }
        Some(())
    }
}

fn given<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn clamped(priority: i64) -> u8 {
    priority.clamp(0, i64::from(PRIORITY_MAX)) as u8
}

fn named(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// A conversation's number. Where two have one, the later one ends what the earlier one kept.
fn number(salts: (Option<&str>, Option<&str>), name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (salts, name).hash(&mut hasher);
    hasher.finish()
}

fn checked_seconds(name: &str, seconds: u64) -> Result<u64, ApiError> {
    if seconds <= SECONDS_MAX {
        return Ok(seconds);
    }
    Err(ApiError::invalid(name, format!("{seconds} s; at most {SECONDS_MAX}, a day")))
}

/// The time of `{"type": "ephemeral", "ttl": "5m"}`.
fn ephemeral(name: &str, control: &Value) -> Result<u64, ApiError> {
    let Value::Object(fields) = control else {
        return Err(ApiError::invalid(name, format!("{} instead of an object", type_name(control))));
    };
    if fields.get("type").and_then(Value::as_str) != Some("ephemeral") {
        return Err(ApiError::invalid(format!("{name}.type"), "not \"ephemeral\", the only kind"));
    }
    given(fields, "ttl").map_or(Ok(EPHEMERAL_SECONDS), |ttl| seconds_of(&format!("{name}.ttl"), ttl))
}

/// A time such as `"5m"`, or a number of seconds.
fn seconds_of(name: &str, ttl: &Value) -> Result<u64, ApiError> {
    let wrong = || ApiError::invalid(name, format!("{ttl} is not a time such as \"5m\" or \"1h\", or seconds"));
    let seconds = match ttl {
        Value::Number(seconds) => seconds.as_u64().ok_or_else(wrong)?,
        Value::String(text) => {
            let (count, each) = [("s", 1), ("m", 60), ("h", 3600)]
                .into_iter()
                .find_map(|(unit, each)| Some((text.strip_suffix(unit)?, each)))
                .ok_or_else(wrong)?;
            let is_count = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
            let count: u64 = count.parse().ok().filter(|_| is_count).ok_or_else(wrong)?;
            count.saturating_mul(each)
        }
        _ => return Err(wrong()),
    };
    checked_seconds(name, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(fields: &Value) -> Body {
        let mut body = json!({"model": "m", "prompt": "x"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        Body::parse(body.to_string().as_bytes()).unwrap()
    }

    fn wishes(fields: &Value) -> Wishes {
        Wishes::of(&body(fields)).unwrap()
    }

    fn kept(fields: &Value) -> Option<(u64, u8)> {
        wishes(fields).retain((None, None), true).map(|retain| (retain.ms / 1000, retain.priority))
    }

    #[test]
    fn all_forms_of_a_wish_are_understood() {
        let action = |kind: &str, payload: Value| {
            json!({"kv_hints": {"protocol_version": "0.1", "message_id": "m", "actions": [
                {"action_id": "1", "action_type": kind, "action_version": "1.0", "payload": payload}]}})
        };
        for (fields, expected) in [
            (json!({}), None),
            (json!({"cenote": {"retain": {"seconds": 60, "priority": 7}}}), Some((60, 7))),
            (json!({"cenote": {"retain": {"seconds": 0}}}), Some((0, 0))),
            (json!({"prompt_cache_retention": "in_memory", "prompt_cache_key": "k"}), None),
            (json!({"prompt_cache_retention": "24h"}), Some((86_400, 0))),
            (json!({"prompt_cache_options": {"ttl": "30m"}}), Some((1800, 0))),
            (json!({"cache_control": {"type": "ephemeral"}}), Some((300, 0))),
            (json!({"cache_control": {"type": "ephemeral", "ttl": "1h"}}), Some((3600, 0))),
            (
                json!({"nvext": {"cache_control": {"type": "ephemeral", "ttl": "5m"}, "agent_hints": {"priority": 500}}}),
                Some((300, 99)),
            ),
            (json!({"nvext": {"agent_hints": {"osl": 12, "priority": 3}}}), None),
            (action("kv.retain", json!({"ttl_seconds": 30, "priority": -4})), Some((30, 0))),
            (action("pin", json!({"ttl_seconds": 1_000_000, "priority": null})), Some((86_400, 0))),
            (action("kv.demote", json!({})), Some((0, 0))),
            (action("kv.fetch", json!({"source": "somewhere"})), None),
        ] {
            assert_eq!(kept(&fields), expected, "{fields}");
            assert_eq!(wishes(&fields).unknown, 0, "{fields}");
        }
        let both =
            json!({"prompt_cache_options": {"ttl": "30m"}, "cenote": {"retain": {"seconds": 60, "priority": 7}}});
        assert_eq!(kept(&both), Some((1800, 7)), "the longest, with the largest priority");
    }

    #[test]
    fn marks_at_messages_keep_the_request() {
        let body = Body::parse(
            &serde_json::to_vec(&json!({"model": "m", "messages": [
                {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
                {"role": "user", "content": "b", "cache_control": {"type": "ephemeral"}},
            ]}))
            .unwrap(),
        )
        .unwrap();
        let mut wishes = Wishes::of(&body).unwrap();
        wishes.add_messages(body.messages.as_deref().unwrap()).unwrap();
        assert_eq!(wishes.kept, Some((3600, 0)));
    }

    #[test]
    fn a_session_has_a_number_of_its_name() {
        let none = (None, None);
        let session = |fields: &Value, salts| wishes(fields).retain(salts, true).and_then(|retain| retain.session);
        let own = json!({"cenote": {"retain": {"seconds": 60, "session": "a"}}, "session_id": "b"});
        let ephemeral = |name: &str| json!({"cache_control": {"type": "ephemeral"}, "session_id": name});
        assert_eq!(session(&own, none), Some(number(none, "a")));
        assert_eq!(session(&ephemeral("b"), none), Some(number(none, "b")));
        assert_eq!(session(&ephemeral(""), none), None);
        assert_eq!(wishes(&own).retain(none, false).unwrap().session, None);
        let of_others = [(Some("x"), None), (None, Some("x")), (None, None)].map(|salts| session(&own, salts));
        assert!(of_others.iter().enumerate().all(|(at, one)| !of_others[..at].contains(one)), "{of_others:?}");
    }

    #[test]
    fn unknown_actions_are_counted_and_change_nothing() {
        let action = |kind: &str, version: &str, payload: Value| json!({"action_type": kind, "action_version": version, "payload": payload});
        for hints in [
            json!({"actions": [action("kv.explode", "1.0", json!({}))]}),
            json!({"actions": [action("kv.retain", "2.0", json!({"ttl_seconds": 5}))]}),
            json!({"actions": [action("kv.retain", "1.0", json!({"ttl_seconds": "5"}))]}),
            json!({"actions": [action("kv.retain", "1.0", json!({}))]}),
            json!({"actions": [5]}),
            json!({"actions": {}}),
            json!("kv.retain"),
        ] {
            assert_eq!(wishes(&json!({"kv_hints": hints})), Wishes { unknown: 1, ..Wishes::default() }, "{hints}");
        }
        let many = vec![action("kv.explode", "1.0", json!({})); 1000];
        assert_eq!(wishes(&json!({"kv_hints": {"actions": many}})).unknown, 1000);
    }

    #[test]
    fn a_wrong_time_is_refused_by_name() {
        for (fields, name) in [
            (json!({"cenote": {"retain": {"seconds": 86_401}}}), "cenote.retain.seconds"),
            (json!({"cenote": {"retain": {"seconds": 1, "priority": 100}}}), "cenote.retain.priority"),
            (json!({"prompt_cache_retention": "1h"}), "prompt_cache_retention"),
            (json!({"prompt_cache_options": {"ttl": "5 m"}}), "prompt_cache_options.ttl"),
            (json!({"cache_control": "ephemeral"}), "cache_control"),
            (json!({"cache_control": {"type": "pinned"}}), "cache_control.type"),
            (json!({"cache_control": {"type": "ephemeral", "ttl": "m"}}), "cache_control.ttl"),
            (json!({"cache_control": {"type": "ephemeral", "ttl": "99999999999999999999h"}}), "cache_control.ttl"),
            (json!({"cache_control": {"type": "ephemeral", "ttl": "5é"}}), "cache_control.ttl"),
            (json!({"nvext": {"cache_control": {"type": "ephemeral", "ttl": -5}}}), "nvext.cache_control.ttl"),
        ] {
            let error = Wishes::of(&body(&fields)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name), "{fields}");
        }
    }
}
