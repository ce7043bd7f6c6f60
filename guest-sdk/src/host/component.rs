//! The imports of a component.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    bindings::cofferdam::storage::{
        ambient, deadline, http as wire, log as lines, pool, reveal as reveals, secrets, session,
        settings as section, sign as wire_sign, state, types,
    },
    http::{Authorization, HttpError, Request, Response, UserName},
    sign::{Algorithm, Key, Part},
};

/// The import's secret handle.
pub(crate) type ImportedSecret = types::Secret;

/// True if this call may have changed something outside. An instance serves one call, so the static belongs
/// to that call.
static CHANGED: AtomicBool = AtomicBool::new(false);

pub(crate) fn has_changed() -> bool {
    CHANGED.load(Ordering::Relaxed)
}

pub(crate) fn set_changed(changed: bool) {
    CHANGED.store(changed, Ordering::Relaxed);
}

pub(crate) fn log(level: lines::Level, message: &str, fields: &[(String, String)]) {
    lines::write(level, message, fields);
}

pub(crate) fn now_ms() -> u64 {
    ambient::now_ms()
}

pub(crate) fn random_bytes(length: u32) -> Vec<u8> {
    ambient::random_bytes(length)
}

pub(crate) fn remaining_ms() -> u64 {
    deadline::remaining_ms()
}

pub(crate) fn hmac(
    algorithm: Algorithm,
    key: &Key<'_>,
    messages: &[Vec<u8>],
) -> Result<Vec<u8>, wire_sign::SignError> {
    let Key { secret, encoding, prefix } = key;
    let key = wire_sign::Key { secret: secret.handle(), encoding: *encoding, prefix: prefix.clone() };
    wire_sign::hmac(algorithm, &key, messages)
}

pub(crate) fn digest(algorithm: Algorithm, parts: &[Part<'_>]) -> Vec<u8> {
    let parts: Vec<_> = parts
        .iter()
        .map(|part| match part {
            Part::Bytes(bytes) => wire_sign::Part::Bytes(bytes.to_vec()),
            Part::Secret(secret) => wire_sign::Part::Secret(secret.handle()),
        })
        .collect();
    wire_sign::digest(algorithm, &parts)
}

pub(crate) fn sleep(pause: Duration) {
    std::thread::sleep(pause);
}

pub(crate) fn setting(key: &str) -> Option<String> {
    section::get(key)
}

pub(crate) fn settings() -> Vec<(String, String)> {
    section::entries()
}

pub(crate) fn state_get(key: &str) -> Result<Option<state::Entry>, state::StateError> {
    state::get(key)
}

pub(crate) fn state_commit(changes: &[state::Change]) -> Result<state::Version, state::StateError> {
    state::commit(changes)
}

pub(crate) fn state_scan(
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<state::Page, state::StateError> {
    state::scan(prefix, after, limit)
}

pub(crate) fn secret_names() -> Vec<String> {
    secrets::names()
}

pub(crate) fn secret(name: &str) -> Option<ImportedSecret> {
    secrets::get(name)
}

pub(crate) fn reveal(secret: &ImportedSecret) -> String {
    reveals::reveal(secret)
}

pub(crate) fn session_acquire(key: &str) -> Result<session::Acquired, session::SessionError> {
    session::acquire(key)
}

pub(crate) fn session_put(
    key: &str,
    value: &[u8],
    ttl_ms: u64,
) -> Result<session::Generation, session::SessionError> {
    session::put(key, value, ttl_ms)
}

pub(crate) fn session_release(key: &str) {
    session::release(key);
}

pub(crate) fn session_invalidate(key: &str, generation: session::Generation) {
    session::invalidate(key, generation);
}

pub(crate) fn send(request: Request<'_>) -> Result<Response, HttpError> {
    let authorization = request.authorization.map(|authorization| match authorization {
        Authorization::Basic { user, password } => wire::Authorization::Basic(wire::Basic {
            user: match user {
                UserName::Plain(name) => wire::UserName::Plain(name),
                UserName::Secret(name) => wire::UserName::Hidden(name.handle()),
            },
            password: password.handle(),
        }),
        Authorization::Bearer(token) => wire::Authorization::Bearer(token.handle()),
        Authorization::Header { name, value } => {
            wire::Authorization::Header(wire::SecretHeader { name, value: value.handle() })
        }
    });
    let request = wire::Request {
        method: request.method,
        url: request.url,
        headers: request.headers,
        body: request.body,
        authorization,
        timeout_ms: request.timeout_ms,
    };
    match wire::send(&request) {
        Ok(wire::Response { status, headers, body }) => Ok(Response::received(status, headers, body)),
        Err(wire::HttpError { failure, message, maybe_sent: true }) => Err(HttpError::lost(failure, message)),
        Err(wire::HttpError { failure, message, maybe_sent: false }) => {
            Err(HttpError::unsent(failure, message))
        }
    }
}

pub(crate) fn pool_create_directory(name: &str) -> Result<(), pool::PoolError> {
    pool::create_directory(name)
}

pub(crate) fn pool_create_image(name: &str, size_bytes: u64) -> Result<(), pool::PoolError> {
    pool::create_image(name, size_bytes)
}

pub(crate) fn pool_remove(name: &str) -> Result<(), pool::PoolError> {
    pool::remove(name)
}

pub(crate) fn pool_grow(name: &str, size_bytes: u64) -> Result<(), pool::PoolError> {
    pool::grow(name, size_bytes)
}

pub(crate) fn pool_copy(
    source: &str,
    name: &str,
    size_bytes: Option<u64>,
    mode: pool::CopyMode,
) -> Result<(), pool::PoolError> {
    pool::copy(source, name, size_bytes, mode)
}

pub(crate) fn pool_measure(name: &str) -> Result<pool::Item, pool::PoolError> {
    pool::measure(name)
}

pub(crate) fn pool_scan(
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<pool::Page, pool::PoolError> {
    pool::scan(prefix, after, limit)
}

pub(crate) fn pool_usage() -> Result<pool::Space, pool::PoolError> {
    pool::usage()
}
