//! The imports of a native build, served by the mock host installed on this thread. Without one there are no
//! settings, secrets and sessions, log lines are dropped, the clock does not advance, random bytes repeat,
//! and the imports `state`, `http` and `pool` return an error that names the missing host.

use std::time::Duration;

use crate::{
    bindings::cofferdam::storage::{
        log::Level,
        pool::{self, PoolError},
        session::{Acquired, Generation, SessionError},
        sign::SignError,
        state::{Change, Entry, Page, StateError, Version},
    },
    http::{Failure, HttpError, Request, Response},
    mock::{self, MockHost, MockSecret as MockHandle, hashes},
    sign::{Algorithm, Encoding, Key, Part},
};

/// The mock's secret handle.
pub(crate) type ImportedSecret = MockHandle;

const NO_HOST: &str = "no mock host is installed on this thread: see cofferdam_guest::mock";

pub(crate) fn has_changed() -> bool {
    mock::current().is_some_and(|host| host.has_changed())
}

pub(crate) fn set_changed(changed: bool) {
    if let Some(host) = mock::current() {
        host.set_changed(changed);
    }
}

pub(crate) fn log(level: Level, message: &str, fields: &[(String, String)]) {
    if let Some(host) = mock::current() {
        host.write_log_line(level, message, fields);
    }
}

pub(crate) fn now_ms() -> u64 {
    mock::current().unwrap_or_default().now_ms()
}

pub(crate) fn random_bytes(length: u32) -> Vec<u8> {
    mock::current().unwrap_or_default().random_bytes(length)
}

pub(crate) fn remaining_ms() -> u64 {
    mock::current().unwrap_or_default().remaining_ms()
}

pub(crate) fn hmac(algorithm: Algorithm, key: &Key<'_>, messages: &[Vec<u8>]) -> Result<Vec<u8>, SignError> {
    let text = key.secret.handle().text();
    let secret = match key.encoding {
        Encoding::Text => Some(text.as_bytes().to_vec()),
        Encoding::Base64 => hashes::decode_base64(text),
        Encoding::Hex => hashes::decode_hex(text),
    };
    let secret = secret.ok_or(SignError::InvalidSecret(key.encoding))?;
    if messages.is_empty() {
        return Err(SignError::NoMessage);
    }
    let first = [key.prefix.as_slice(), &secret].concat();
    Ok(messages.iter().fold(first, |key, message| hashes::hmac(algorithm, &key, message)))
}

pub(crate) fn digest(algorithm: Algorithm, parts: &[Part<'_>]) -> Vec<u8> {
    let bytes = |part: &Part<'_>| match part {
        Part::Bytes(bytes) => bytes.to_vec(),
        Part::Secret(secret) => secret.handle().text().as_bytes().to_vec(),
    };
    hashes::digest(algorithm, &parts.iter().flat_map(bytes).collect::<Vec<_>>())
}

pub(crate) fn sleep(pause: Duration) {
    if let Some(host) = mock::current() {
        host.advance(pause);
    }
}

pub(crate) fn setting(key: &str) -> Option<String> {
    mock::current()?.setting_value(key)
}

pub(crate) fn settings() -> Vec<(String, String)> {
    mock::current().map(|host| host.settings()).unwrap_or_default()
}

fn with_mock_state<T>(call: impl FnOnce(MockHost) -> Result<T, StateError>) -> Result<T, StateError> {
    call(mock::current().ok_or_else(|| StateError::Unavailable(NO_HOST.to_owned()))?)
}

pub(crate) fn state_get(key: &str) -> Result<Option<Entry>, StateError> {
    with_mock_state(|host| host.state_get(key))
}

pub(crate) fn state_commit(changes: &[Change]) -> Result<Version, StateError> {
    with_mock_state(|host| host.state_commit(changes))
}

pub(crate) fn state_scan(prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError> {
    with_mock_state(|host| host.state_scan(prefix, after, limit))
}

pub(crate) fn secret_names() -> Vec<String> {
    mock::current().map(|host| host.secret_names()).unwrap_or_default()
}

pub(crate) fn secret(name: &str) -> Option<ImportedSecret> {
    mock::current()?.secret_handle(name)
}

pub(crate) fn reveal(secret: &ImportedSecret) -> String {
    if let Some(host) = mock::current() {
        host.record_revealed(secret);
    }
    secret.text().to_owned()
}

pub(crate) fn session_acquire(key: &str) -> Result<Acquired, SessionError> {
    mock::current().map_or(Ok(Acquired::Locked), |host| host.session_acquire(key))
}

pub(crate) fn session_put(key: &str, value: &[u8], ttl_ms: u64) -> Result<Generation, SessionError> {
    mock::current().map_or(Ok(0), |host| host.session_put(key, value, ttl_ms))
}

pub(crate) fn session_release(key: &str) {
    if let Some(host) = mock::current() {
        host.session_release(key);
    }
}

pub(crate) fn session_invalidate(key: &str, generation: Generation) {
    if let Some(host) = mock::current() {
        host.session_invalidate(key, generation);
    }
}

pub(crate) fn send(request: Request<'_>) -> Result<Response, HttpError> {
    match mock::current() {
        Some(host) => host.send(request),
        None => Err(HttpError::unsent(Failure::Forbidden, NO_HOST)),
    }
}

fn with_mock_pool<T>(call: impl FnOnce(MockHost) -> Result<T, PoolError>) -> Result<T, PoolError> {
    call(mock::current().ok_or_else(|| PoolError::Failed(NO_HOST.to_owned()))?)
}

pub(crate) fn pool_create_directory(name: &str) -> Result<(), PoolError> {
    with_mock_pool(|host| host.with_pool(|tree| tree.create_directory(name)))
}

pub(crate) fn pool_create_image(name: &str, size_bytes: u64) -> Result<(), PoolError> {
    with_mock_pool(|host| host.with_pool(|tree| tree.create_image(name, size_bytes)))
}

pub(crate) fn pool_remove(name: &str) -> Result<(), PoolError> {
    with_mock_pool(|host| host.with_pool(|tree| tree.remove(name)))
}

pub(crate) fn pool_grow(name: &str, size_bytes: u64) -> Result<(), PoolError> {
    with_mock_pool(|host| host.with_pool(|tree| tree.grow(name, size_bytes)))
}

pub(crate) fn pool_copy(
    source: &str,
    name: &str,
    size_bytes: Option<u64>,
    mode: pool::CopyMode,
) -> Result<(), PoolError> {
    with_mock_pool(|host| host.with_pool(|tree| tree.copy(source, name, size_bytes, mode)))
}

pub(crate) fn pool_measure(name: &str) -> Result<pool::Item, PoolError> {
    with_mock_pool(|host| host.with_pool(|tree| tree.measure(name)))
}

pub(crate) fn pool_scan(prefix: &str, after: Option<&str>, limit: u32) -> Result<pool::Page, PoolError> {
    with_mock_pool(|host| host.with_pool(|tree| Ok(tree.scan(prefix, after, limit))))
}

pub(crate) fn pool_usage() -> Result<pool::Space, PoolError> {
    with_mock_pool(|host| host.with_pool(|tree| Ok(tree.usage())))
}
