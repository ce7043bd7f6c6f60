//! A host for `cargo test`: what a backend imports, in this process, without WebAssembly.
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
//! A host belongs to a thread, as a test does. While none is installed there are no settings, secrets and
//! logins, time stands still, chance repeats itself, and whatever can fail does, and says so.
//!
//! Its rules are the real host's: versions and conflicts, sizes, the number of changes at once, pages, times
//! to live. What a real host does only now and then, it does when it is told to: [`Host::dies_after`],
//! [`Host::before_commits`], an error of a scripted server, [`Host::forget_logins`], [`Host::pool_busy`].

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

/// Noon of 1 January 2026, where time begins unless a test says otherwise.
const START_MS: u64 = 1_767_268_800_000;
const FAILED_ON_PURPOSE: &str = "the instance died";
const REDACTED: &str = "[secret]";

/// The host of this thread.
pub(crate) fn current() -> Option<MockHost> {
    CURRENT.with(|current| current.try_borrow().ok().and_then(|host| host.clone()))
}

/// A host. Its clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct MockHost(Rc<MockState>);

#[derive(Default)]
struct MockState {
    settings: RefCell<BTreeMap<String, String>>,
    secrets: RefCell<BTreeMap<String, Rc<str>>>,
    revealed: RefCell<BTreeSet<String>>,
    log_lines: RefCell<Vec<LogLine>>,
    elapsed_ms: Cell<u64>,
    start_ms: Cell<Option<u64>>,
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

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How much it matters.
    pub level: Level,
    /// What it says, without the call's secrets.
    pub message: String,
    /// What belongs to it, without the call's secrets.
    pub fields: Vec<(String, String)>,
}

/// What stands for a secret in a native build.
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

/// A host that is in use on this thread, until it is dropped; then the one before is again.
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

/// What a test sets up.
impl MockHost {
    /// A host that grants everything and holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a setting.
    #[must_use]
    pub fn setting(self, key: &str, value: &str) -> Self {
        self.0.settings.borrow_mut().insert(key.to_owned(), value.to_owned());
        self
    }

    /// Gives the calls a secret.
    #[must_use]
    pub fn secret(self, name: &str, text: &str) -> Self {
        self.set_secret(name, text);
        self
    }

    /// Begins time here: milliseconds since 1970-01-01T00:00:00Z.
    #[must_use]
    pub fn start_time(self, ms: u64) -> Self {
        self.0.start_ms.set(Some(ms));
        self
    }

    /// Begins chance here; the same seed gives the same bytes.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.0.rng_state.set(seed);
        self
    }

    /// Bounds the state, in bytes: keys, values and 64 bytes for each entry.
    #[must_use]
    pub fn max_state_bytes(self, bytes: usize) -> Self {
        self.0.blobs.borrow_mut().set_limit(bytes);
        self
    }

    /// Bounds the number of logins.
    #[must_use]
    pub fn max_sessions(self, keys: usize) -> Self {
        self.0.sessions.borrow_mut().set_limit(keys);
        self
    }

    /// Gives the pool this many bytes.
    #[must_use]
    pub fn pool_size(self, bytes: u64) -> Self {
        self.0.pool.borrow_mut().set_total_bytes(bytes);
        self
    }

    /// Gives the pool a filesystem that shares no blocks, so that no copy of an image is of one moment.
    #[must_use]
    pub fn pool_without_sharing(self) -> Self {
        self.0.pool.borrow_mut().set_shares_blocks(false);
        self
    }

    /// Lets a server answer what is sent to URLs with a prefix. Of several that fit, the one that came last
    /// answers. A lost answer is an [`HttpError::lost`], returned after the server has done its work.
    #[must_use]
    pub fn on(
        self,
        method: Method,
        url_prefix: &str,
        answer: impl FnMut(&ReceivedRequest) -> Result<Response, HttpError> + 'static,
    ) -> Self {
        self.0.servers.add_handler(method, url_prefix, answer);
        self
    }

    /// Makes this the host of the thread.
    pub fn install(self) -> InstalledHost {
        let previous = CURRENT.with(|current| current.replace(Some(self.clone())));
        InstalledHost { host: self, previous }
    }
}

/// What a test does and sees while the host is in use.
impl MockHost {
    /// Makes one call as a fresh instance would: at its end a turn for a login is given back, and whether
    /// something was changed is its own matter. Outside of this, every import stands alone and no change is
    /// remembered.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        let _guard = MockCallGuard(self);
        self.0.changed.set(false);
        self.0.in_call.set(true);
        call()
    }

    /// Changes a secret for the calls that follow.
    pub fn set_secret(&self, name: &str, text: &str) {
        self.0.secrets.borrow_mut().insert(name.to_owned(), text.into());
    }

    /// Lets time pass.
    pub fn advance(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.elapsed_ms.set(self.0.elapsed_ms.get().saturating_add(ms));
    }

    /// Lets everything that can fail work this many times more and then fail, as if the instance died:
    /// nothing that is called after that has an effect.
    pub fn fail_after(&self, imports: u32) {
        self.0.calls_left.set(Some(imports));
    }

    /// Ends [`dies_after`](Self::dies_after).
    pub fn stop_failing(&self) {
        self.0.calls_left.set(None);
    }

    /// Does something before every commit of the backend, such as a foreign [`write`](Self::write).
    pub fn before_each_commit(&self, hook: impl FnMut(&Self) + 'static) {
        self.0.before_commit.replace(Some(Rc::new(RefCell::new(hook))));
    }

    /// Ends [`before_commits`](Self::before_commits).
    pub fn clear_before_each_commit(&self) {
        self.0.before_commit.replace(None);
    }

    /// Writes a key of the state as a stranger would, whatever is there.
    pub fn write_state(&self, key: &str, value: &[u8]) {
        self.0.blobs.borrow_mut().set(key, Some(value.to_vec()));
    }

    /// Removes a key of the state as a stranger would.
    pub fn remove_state(&self, key: &str) {
        self.0.blobs.borrow_mut().set(key, None);
    }

    /// The keys of the state, in the order of their bytes.
    pub fn state_keys(&self) -> Vec<String> {
        self.0.blobs.borrow().keys()
    }

    /// What was logged.
    pub fn log_lines(&self) -> Vec<LogLine> {
        self.0.log_lines.borrow().clone()
    }

    /// The requests that were sent, also those that no server answers.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.0.servers.received()
    }

    /// Forgets the requests that were sent.
    pub fn clear_requests(&self) {
        self.0.servers.clear();
    }

    /// The names of the secrets that were revealed.
    pub fn revealed(&self) -> Vec<String> {
        self.0.revealed.borrow().iter().cloned().collect()
    }

    /// The keys of the logins that are held.
    pub fn session_keys(&self) -> Vec<String> {
        self.0.sessions.borrow_mut().keys(self.now_ms())
    }

    /// Forgets all logins, as a host that begins anew.
    pub fn clear_sessions(&self) {
        self.0.sessions.borrow_mut().clear();
    }

    /// The key whose turn is in the backend's hands.
    pub fn locked_session_key(&self) -> Option<String> {
        self.0.sessions.borrow().locked_key()
    }

    /// Lets an item of the pool be at work, or not any more.
    pub fn set_pool_busy(&self, name: &str, busy: bool) {
        self.0.pool.borrow_mut().set_use(name, busy.then_some(pool::PoolItemUse::Changing));
    }

    /// Lets a copy to a new name be at work, or not any more: the name is busy, and the source so for
    /// whatever would change it.
    pub fn set_pool_copying(&self, source: &str, name: &str, copying: bool) {
        let mut tree = self.0.pool.borrow_mut();
        tree.set_use(source, copying.then_some(pool::PoolItemUse::Copying));
        tree.set_use(name, copying.then_some(pool::PoolItemUse::Changing));
    }

    /// Writes a file in a directory of the pool, or, with an empty `file`, the content of an image; false
    /// when there is no such item.
    pub fn pool_write(&self, item: &str, file: &str, bytes: &[u8]) -> bool {
        self.0.pool.borrow_mut().write(item, file, bytes)
    }

    /// Reads what [`pool_write`](Self::pool_write) wrote.
    pub fn pool_read(&self, item: &str, file: &str) -> Option<Vec<u8>> {
        self.0.pool.borrow().read(item, file)
    }
}

/// The state as another process sees it: without the faults that a test asks for.
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

/// Ends a call, also one that panics.
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

    /// SplitMix64, as its author published it: far from fit for keys, but the same for the same seed.
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
        self.0.sessions.borrow_mut().acquire(key, self.now_ms())
    }

    pub(crate) fn session_put(
        &self,
        key: &str,
        value: &[u8],
        ttl_ms: u64,
    ) -> Result<Generation, SessionError> {
        self.0.sessions.borrow_mut().put(key, value, ttl_ms, self.now_ms())
    }

    pub(crate) fn session_release(&self, key: &str) {
        self.0.sessions.borrow_mut().release(key);
    }

    pub(crate) fn session_invalidate(&self, key: &str, generation: Generation) {
        self.0.sessions.borrow_mut().invalidate(key, generation);
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
