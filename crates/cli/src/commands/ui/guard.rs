//! Which requests are answered, and headers of all answers. A browser on this machine also runs the scripts
//! of other sites, which must not read the region through it.

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;

const HTML: &str = "text/html; charset=utf-8";
/// Stands in the page for the word that permits its own script and style.
const NONCE: &str = "{{nonce}}";

/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 5] = [
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
];

/// Refuses what a page of another site sends.
pub async fn check(request: Request, next: Next) -> Response {
    let mut response = match fault(request.uri(), request.headers()) {
        Some(words) => (StatusCode::FORBIDDEN, format!("{words}\n")).into_response(),
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn fault(uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    let mut hosts = headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    let is_ours = host.is_some_and(|host| host.to_str().is_ok_and(is_no_foreign_name));
    let target = uri.authority().is_none_or(|authority| is_no_foreign_name(authority.as_str()));
    if !is_ours || second.is_some() || !target {
        // A foreign name may lead here by DNS rebinding.
        return Some("host: only localhost and addresses in digits are answered");
    }
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_foreign = site.is_some_and(|site| site != b"same-origin" && site != b"none");
    // A link on another site may lead to the page.
    (is_foreign && uri.path() != "/").then_some("sec-fetch-site: pages of other sites get no answer")
}

/// Whether a host is `localhost` or an address: neither can lead elsewhere by a change of names.
pub fn is_no_foreign_name(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    !host.contains('@') && (name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok())
}

/// The page, with permission for its own script and style only.
pub fn page(text: &str) -> Response {
    let Ok(word) = cenote_pool::random_bytes::<16>().map(hex::encode) else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "this machine gives no random bytes\n").into_response();
    };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{word}'; style-src 'nonce-{word}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [(CONTENT_TYPE, HTML.to_owned()), (CONTENT_SECURITY_POLICY, policy)];
    (headers, text.replace(NONCE, &word)).into_response()
}
