//! A mock host for `cargo test`: the imports of a backend in the test process, without WebAssembly.
//!
//! ```
//! use cofferdam_guest::{http, mock::MockHost, secrets, settings};
//!
//! let host = MockHost::new()
//!     .setting("url", "http://array")
//!     .secret("password", "hunter2")
//!     .on(http::Method::Get, "http://array/v1/", |request| {
//!         Ok(match request.basic() {
//!             Some(("admin", "hunter2")) => http::Response::new(200),
//!             _ => http::Response::new(401),
//!         })
//!     })
//!     .install();
//!
//! let url = format!("{}/v1/volumes", settings::get("url").unwrap());
//! let password = secrets::get("password").unwrap();
//! let response = http::Request::get(url).basic("admin", &password).send().unwrap();
//!
//! assert_eq!(response.status, 200);
//! assert_eq!(host.requests()[0].secrets, ["password"]);
//! ```
//!
//! A host belongs to a thread, like a test. Without a host there are no settings, secrets and sessions, log
//! lines are dropped, the clock does not advance, random bytes repeat, and the imports `state`, `http` and
//! `pool` return an error that names the missing host.
//!
//! The mock follows the rules of the real host: versions and conflicts, sizes, changes per commit, pages,
//! lifetimes of sessions. It differs in these:
//!
//! - A full session store drops nothing, and no call waits for a lock.
//! - URLs, headers and sizes of requests are not checked, and every secret may be sent to every origin.
//! - Random bytes are predictable, and their number is not limited.
//! - The operator's limits apply only where the test sets them.
//! - A pause of [`poll`](crate::poll) advances the clock and does not wait.
//!
//! Rare events happen on request: [`MockHost::fail_after`], [`MockHost::before_each_commit`], errors of a
//! mock server, [`MockHost::clear_sessions`], [`MockHost::set_pool_busy`], [`MockHost::set_pool_copying`].

pub(crate) mod hashes;
mod http;
mod pool;
mod session;
mod state;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Deref,
    rc::Rc,
    time::Duration,
};

pub use self::http::ReceivedRequest;
use crate::{
    bindings::cofferdam::storage::{
        pool::PoolError,
        session::{Acquired, Generation, SessionError},
    },
    http::{Failure, HttpError, Method, Request, Response},
    log::Level,
    state::{Change, Entry, Page, StateError, Store, Version},
};

thread_local! {
    static CURRENT: RefCell<Option<MockHost>> = const { RefCell::new(None) };
}

/// Default time until the deadline of the call, as in the host.
const DEADLINE_MS: u64 = 60_000;
/// Default start of the clock: 2026-01-01T12:00:00Z.
const START_MS: u64 = 1_767_268_800_000;
const FAILED_ON_PURPOSE: &str = "the instance died";
const REDACTED: &str = "[secret]";

/// The host that is installed on this thread, or `None`.
pub(crate) fn current() -> Option<MockHost> {
    CURRENT.with(|current| current.try_borrow().ok().and_then(|host| host.clone()))
}

/// A mock host. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct MockHost(Rc<MockState>);

#[derive(Default)]
struct MockState {
    settings: RefCell<BTreeMap<String, String>>,
    secrets: RefCell<session::SecretSet>,
    revealed: RefCell<BTreeSet<String>>,
    log_lines: RefCell<Vec<LogLine>>,
    elapsed_ms: Cell<u64>,
    start_ms: Cell<Option<u64>>,
    /// The deadline of the call, as a time of the clock since its start.
    deadline_ms: Cell<Option<u64>>,
    rng_state: Cell<u64>,
    calls_left: Cell<Option<u32>>,
    in_call: Cell<bool>,
    changed: Cell<bool>,
    blobs: RefCell<state::MockStateStore>,
    before_commit: RefCell<Option<CommitHook>>,
    sessions: RefCell<session::MockSessionStore>,
    servers: http::MockServers,
    pool: RefCell<pool::MockPool>,
}

type CommitHook = Rc<RefCell<dyn FnMut(&MockHost)>>;

impl fmt::Debug for MockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("settings", &self.settings)
            .field("secrets", &self.secrets.borrow().keys())
            .field("lines", &self.log_lines)
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The severity.
    pub level: Level,
    /// The message, with secrets redacted.
    pub message: String,
    /// The names and values of the fields, with secrets redacted in the values.
    pub fields: Vec<(String, String)>,
}

/// The handle of a secret in a native build.
#[derive(Clone)]
pub(crate) struct MockSecret {
    name: String,
    text: Rc<str>,
}

impl MockSecret {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// The installed host of this thread. Dropping it restores the previous host.
#[derive(Debug)]
#[must_use = "the host is in use until this is dropped"]
pub struct InstalledHost {
    host: MockHost,
    previous: Option<MockHost>,
}

impl Deref for InstalledHost {
    type Target = MockHost;

    fn deref(&self) -> &MockHost {
        &self.host
    }
}

impl Drop for InstalledHost {
    fn drop(&mut self) {
        let before = self.previous.take();
        CURRENT.with(|current| current.replace(before));
    }
}

/// Setup of a test.
impl MockHost {
    /// An empty host that grants every import.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a setting.
    #[must_use]
    pub fn setting(self, key: &str, value: &str) -> Self {
        self.0.settings.borrow_mut().insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds a secret to all calls.
    #[must_use]
    pub fn secret(self, name: &str, text: &str) -> Self {
        self.set_secret(name, text);
        self
    }

    /// Sets the start of the clock, in milliseconds since 1970-01-01T00:00:00Z. The default is
    /// 2026-01-01T12:00:00Z.
    #[must_use]
    pub fn start_time(self, ms: u64) -> Self {
        self.0.start_ms.set(Some(ms));
        self
    }

    /// Seeds the random bytes. The same seed gives the same bytes.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.0.rng_state.set(seed);
        self
    }

    /// Limits the size of the state in bytes: keys, values and 160 bytes per entry, as the host counts them.
    /// The default is no limit. [`write_state`](Self::write_state) ignores it.
    #[must_use]
    pub fn max_state_bytes(self, bytes: usize) -> Self {
        self.0.blobs.borrow_mut().set_limit(bytes);
        self
    }

    /// Limits the number of stored sessions. At the limit, a new key fails with [`SessionError::Full`]. The
    /// default is no limit.
    #[must_use]
    pub fn max_sessions(self, keys: usize) -> Self {
        self.0.sessions.borrow_mut().set_limit(keys);
        self
    }

    /// Sets the size of the pool in bytes. The default is 1 TiB.
    #[must_use]
    pub fn pool_size(self, bytes: u64) -> Self {
        self.0.pool.borrow_mut().set_total_bytes(bytes);
        self
    }

    /// Gives the pool a filesystem without block sharing: point-in-time copies of images fail with
    /// [`PoolError::Unsupported`].
    #[must_use]
    pub fn pool_without_sharing(self) -> Self {
        self.0.pool.borrow_mut().set_shares_blocks(false);
        self
    }

    /// Adds a mock server for the requests with a method and a URL prefix. Of several matching servers, the
    /// last one added responds. To simulate a lost response, the server does its work and returns
    /// [`HttpError::lost`].
    #[must_use]
    pub fn on(
        self,
        method: Method,
        url_prefix: &str,
        answer: impl FnMut(&ReceivedRequest) -> Result<Response, HttpError> + 'static,
    ) -> Self {
        self.0.servers.add_handler(method, url_prefix, |_| true, answer);
        self
    }

    /// Adds a mock server as [`on`](Self::on) does, but only for requests that `matches` accepts. Of several
    /// matching servers, the last one added responds. It tells the operations of an API apart that have one
    /// URL and differ in the body:
    ///
    /// ```
    /// use cofferdam_guest::{http::{Method, Request, Response}, mock::{MockHost, ReceivedRequest}};
    ///
    /// fn action(name: &'static str) -> impl Fn(&ReceivedRequest) -> bool {
    ///     move |request| request.form_value("Action").as_deref() == Some(name)
    /// }
    ///
    /// let _host = MockHost::new()
    ///     .on(Method::Post, "http://ec2/", |_| Ok(Response::new(400).with_body("InvalidAction")))
    ///     .on_matching(Method::Post, "http://ec2/", action("CreateVolume"), |request| {
    ///         assert_eq!(request.form_value("Size").as_deref(), Some("8"));
    ///         Ok(Response::new(200).with_body("vol-1"))
    ///     })
    ///     .on_matching(Method::Post, "http://ec2/", action("DeleteVolume"), |_| Ok(Response::new(200)))
    ///     .install();
    /// let call = |pairs: &[(&str, &str)]| Request::post("http://ec2/").form(pairs).send().unwrap();
    /// assert_eq!(call(&[("Action", "CreateVolume"), ("Size", "8")]).text(), "vol-1");
    /// assert_eq!(call(&[("Action", "DeleteVolume")]).text(), "");
    /// assert_eq!(call(&[("Action", "AttachVolume")]).status, 400);
    /// ```
    #[must_use]
    pub fn on_matching(
        self,
        method: Method,
        url_prefix: &str,
        matches: impl Fn(&ReceivedRequest) -> bool + 'static,
        answer: impl FnMut(&ReceivedRequest) -> Result<Response, HttpError> + 'static,
    ) -> Self {
        self.0.servers.add_handler(method, url_prefix, matches, answer);
        self
    }

    /// Installs this host for the current thread.
    pub fn install(self) -> InstalledHost {
        let previous = CURRENT.with(|current| current.replace(Some(self.clone())));
        InstalledHost { host: self, previous }
    }
}

/// Control and inspection during a test.
impl MockHost {
    /// Runs one call as a fresh instance would: at its end, the session lock is released and
    /// [`has_changed`](crate::has_changed) is reset. Outside of `call`, `has_changed` always returns false.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        let _guard = MockCallGuard(self);
        self.0.changed.set(false);
        self.0.in_call.set(true);
        call()
    }

    /// Runs one [`call`](Self::call) with further secrets, such as those of the Secret that a class names. As
    /// in the host, each replaces the secret of all calls that has its name, and no later call has it.
    ///
    /// ```
    /// use cofferdam_guest::{mock::MockHost, secrets};
    ///
    /// let host = MockHost::new().secret("user", "operator").secret("password", "hunter2").install();
    /// let reveal = |name| secrets::get(name).map(|secret| secret.reveal());
    ///
    /// host.call_with_secrets(&[("password", "of the class")], || {
    ///     assert_eq!(reveal("password").as_deref(), Some("of the class"));
    ///     assert_eq!(reveal("user").as_deref(), Some("operator"));
    /// });
    /// assert_eq!(reveal("password").as_deref(), Some("hunter2"));
    /// ```
    pub fn call_with_secrets<T>(&self, secrets: &[(&str, &str)], call: impl FnOnce() -> T) -> T {
        let _guard = MockSecretsGuard(self, self.0.secrets.borrow().clone());
        secrets.iter().for_each(|(name, text)| self.set_secret(name, text));
        self.call(call)
    }

    /// Adds or changes a secret. A handle that a backend already has keeps the earlier text.
    pub fn set_secret(&self, name: &str, text: &str) {
        self.0.secrets.borrow_mut().insert(name.to_owned(), text.into());
    }

    /// Sets the time from now until the deadline of the call; 60 seconds after the start of the clock by
    /// default.
    pub fn set_deadline(&self, remaining: Duration) {
        let ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
        self.0.deadline_ms.set(Some(self.0.elapsed_ms.get().saturating_add(ms)));
    }

    /// Advances the clock.
    pub fn advance(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.elapsed_ms.set(self.0.elapsed_ms.get().saturating_add(ms));
    }

    /// Lets the backend make this many more calls of functions of the imports `state`, `http` and `pool`,
    /// counted together. All later calls of them fail without an effect, as if the instance had died. Other
    /// imports continue to work.
    pub fn fail_after(&self, imports: u32) {
        self.0.calls_left.set(Some(imports));
    }

    /// Ends the effect of [`fail_after`](Self::fail_after).
    pub fn stop_failing(&self) {
        self.0.calls_left.set(None);
    }

    /// Runs a hook before every commit of the backend, for example a concurrent
    /// [`write_state`](Self::write_state).
    pub fn before_each_commit(&self, hook: impl FnMut(&Self) + 'static) {
        self.0.before_commit.replace(Some(Rc::new(RefCell::new(hook))));
    }

    /// Removes the hook of [`before_each_commit`](Self::before_each_commit).
    pub fn clear_before_each_commit(&self) {
        self.0.before_commit.replace(None);
    }

    /// Writes a key of the state as another process would, regardless of its version.
    pub fn write_state(&self, key: &str, value: &[u8]) {
        self.0.blobs.borrow_mut().set(key, Some(value.to_vec()));
    }

    /// Removes a key of the state as another process would.
    pub fn remove_state(&self, key: &str) {
        self.0.blobs.borrow_mut().set(key, None);
    }

    /// The keys of the state in byte order.
    pub fn state_keys(&self) -> Vec<String> {
        self.0.blobs.borrow().keys()
    }

    /// The lines that were logged so far, in order.
    pub fn log_lines(&self) -> Vec<LogLine> {
        self.0.log_lines.borrow().clone()
    }

    /// The requests sent so far, including those without a matching server, but not those that failed by
    /// [`fail_after`](Self::fail_after).
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.0.servers.received()
    }

    /// Clears the recorded requests.
    pub fn clear_requests(&self) {
        self.0.servers.clear();
    }

    /// The names of the secrets that were revealed so far, sorted.
    pub fn revealed(&self) -> Vec<String> {
        self.0.revealed.borrow().iter().cloned().collect()
    }

    /// The keys of the stored sessions of all sets of secrets that have not expired, sorted.
    pub fn session_keys(&self) -> Vec<String> {
        self.0.sessions.borrow_mut().keys(self.now_ms())
    }

    /// Removes all sessions, as after a restart of the host.
    pub fn clear_sessions(&self) {
        self.0.sessions.borrow_mut().clear();
    }

    /// The session key that the current call has locked, or `None` if it holds no lock.
    pub fn locked_session_key(&self) -> Option<String> {
        self.0.sessions.borrow().locked_key()
    }

    /// Marks a pool item as busy, or clears the mark.
    pub fn set_pool_busy(&self, name: &str, busy: bool) {
        self.0.pool.borrow_mut().set_use(name, busy.then_some(pool::PoolItemUse::Changing));
    }

    /// Marks a copy of `source` to the new name `name` as running, or clears the mark. While the mark is set,
    /// `name` is busy, and `source` is busy for changes.
    pub fn set_pool_copying(&self, source: &str, name: &str, copying: bool) {
        let mut tree = self.0.pool.borrow_mut();
        tree.set_use(source, copying.then_some(pool::PoolItemUse::Copying));
        tree.set_use(name, copying.then_some(pool::PoolItemUse::Changing));
    }

    /// Writes a file in a pool directory, or the content of an image if `file` is empty. Returns false if the
    /// item does not exist.
    pub fn pool_write(&self, item: &str, file: &str, bytes: &[u8]) -> bool {
        self.0.pool.borrow_mut().write(item, file, bytes)
    }

    /// Reads a file written with [`pool_write`](Self::pool_write). `None` if the item or the file does not
    /// exist.
    pub fn pool_read(&self, item: &str, file: &str) -> Option<Vec<u8>> {
        self.0.pool.borrow().read(item, file)
    }
}

/// The state as another process accesses it: without injected faults and the hook before each commit.
impl Store for MockHost {
    fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        self.0.blobs.borrow().get(key)
    }

    fn commit(&self, changes: &[Change]) -> Result<Version, StateError> {
        self.0.blobs.borrow_mut().commit(changes)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Page, StateError> {
        self.0.blobs.borrow().scan(prefix, after, limit)
    }
}

/// Restores the secrets of all calls when it is dropped.
struct MockSecretsGuard<'a>(&'a MockHost, session::SecretSet);

impl Drop for MockSecretsGuard<'_> {
    fn drop(&mut self) {
        self.0.0.secrets.replace(std::mem::take(&mut self.1));
    }
}

/// Ends a call, even if it panics.
struct MockCallGuard<'a>(&'a MockHost);

impl Drop for MockCallGuard<'_> {
    fn drop(&mut self) {
        let MockState { in_call, changed, sessions: logins, .. } = &*self.0.0;
        in_call.set(false);
        changed.set(false);
        if let Ok(mut logins) = logins.try_borrow_mut() {
            logins.end_call();
        }
    }
}

/// The imports.
impl MockHost {
    fn consume_call(&self) -> bool {
        match self.0.calls_left.get() {
            None => true,
            Some(0) => false,
            Some(remaining) => {
                self.0.calls_left.set(Some(remaining.saturating_sub(1)));
                true
            }
        }
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.0.changed.get()
    }

    pub(crate) fn set_changed(&self, changed: bool) {
        self.0.changed.set(changed && self.0.in_call.get());
    }

    pub(crate) fn write_log_line(&self, level: Level, message: &str, fields: &[(String, String)]) {
        let fields = fields.iter().map(|(key, value)| (key.clone(), self.redact(value))).collect();
        self.0.log_lines.borrow_mut().push(LogLine { level, message: self.redact(message), fields });
    }

    fn redact(&self, text: &str) -> String {
        let secrets = self.0.secrets.borrow();
        let mut found: Vec<_> = secrets.values().filter(|secret| !secret.is_empty()).collect();
        found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        found.into_iter().fold(text.to_owned(), |text, secret| text.replace(&**secret, REDACTED))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.0.start_ms.get().unwrap_or(START_MS).saturating_add(self.0.elapsed_ms.get())
    }

    pub(crate) fn remaining_ms(&self) -> u64 {
        self.0.deadline_ms.get().unwrap_or(DEADLINE_MS).saturating_sub(self.0.elapsed_ms.get())
    }

    /// SplitMix64 as published by its author: not suitable for keys, but deterministic for a seed.
    pub(crate) fn random_bytes(&self, length: u32) -> Vec<u8> {
        let mut next = || {
            let state = self.0.rng_state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
            self.0.rng_state.set(state);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)).to_le_bytes()
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        std::iter::repeat_with(&mut next).flatten().take(length).collect()
    }

    pub(crate) fn setting_value(&self, key: &str) -> Option<String> {
        self.0.settings.borrow().get(key).cloned()
    }

    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        self.0.settings.borrow().clone().into_iter().collect()
    }

    pub(crate) fn secret_names(&self) -> Vec<String> {
        self.0.secrets.borrow().keys().cloned().collect()
    }

    pub(crate) fn secret_handle(&self, name: &str) -> Option<MockSecret> {
        let text = self.0.secrets.borrow().get(name)?.clone();
        Some(MockSecret { name: name.to_owned(), text })
    }

    pub(crate) fn record_revealed(&self, secret: &MockSecret) {
        self.0.revealed.borrow_mut().insert(secret.name.clone());
    }

    pub(crate) fn state_get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        self.check_alive()?;
        Store::get(self, key)
    }

    pub(crate) fn state_commit(&self, changes: &[Change]) -> Result<Version, StateError> {
        self.check_alive()?;
        let hook = self.0.before_commit.borrow().clone();
        if let Some(hook) = hook
            && let Ok(mut run_hook) = hook.try_borrow_mut()
        {
            run_hook(self);
        }
        Store::commit(self, changes)
    }

    pub(crate) fn state_scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page, StateError> {
        self.check_alive()?;
        Store::scan(self, prefix, after, limit)
    }

    fn check_alive(&self) -> Result<(), StateError> {
        if self.consume_call() { Ok(()) } else { Err(StateError::Unavailable(FAILED_ON_PURPOSE.to_owned())) }
    }

    pub(crate) fn session_acquire(&self, key: &str) -> Result<Acquired, SessionError> {
        self.0.sessions.borrow_mut().acquire(&self.0.secrets.borrow(), key, self.now_ms())
    }

    pub(crate) fn session_put(
        &self,
        key: &str,
        value: &[u8],
        ttl_ms: u64,
    ) -> Result<Generation, SessionError> {
        self.0.sessions.borrow_mut().put(&self.0.secrets.borrow(), key, value, ttl_ms, self.now_ms())
    }

    pub(crate) fn session_release(&self, key: &str) {
        self.0.sessions.borrow_mut().release(key);
    }

    pub(crate) fn session_invalidate(&self, key: &str, generation: Generation) {
        self.0.sessions.borrow_mut().invalidate(&self.0.secrets.borrow(), key, generation);
    }

    pub(crate) fn send(&self, request: Request<'_>) -> Result<Response, HttpError> {
        if !self.consume_call() {
            return Err(HttpError::unsent(Failure::Overloaded, FAILED_ON_PURPOSE));
        }
        self.0.servers.send(request)
    }

    pub(crate) fn with_pool<T>(
        &self,
        access: impl FnOnce(&mut pool::MockPool) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        if !self.consume_call() {
            return Err(PoolError::Failed(FAILED_ON_PURPOSE.to_owned()));
        }
        access(&mut self.0.pool.borrow_mut())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
