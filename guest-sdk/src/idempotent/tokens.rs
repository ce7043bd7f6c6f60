//! Creation in storage with creation tokens that are used up.

use std::time::Duration;

use crate::{Finality, Result, StorageError, digest::sha256_hex, poll};

/// Hexadecimal digits of a token: 128 bits, which makes collisions infeasible.
const TOKEN_DIGITS: usize = 32;
/// Maximum generations that one call tries. One is used up for each deletion of an item of the name that the
/// storage remembers.
const MAX_GENERATIONS: u32 = 16;

/// Result of a creation with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a token has been used or it has not")]
pub enum TokenOutcome<T> {
    /// The item exists: this request created it, or an earlier one with the same token.
    Created(T),
    /// The storage remembers the token, but its item is deleted or differs from the request. Nothing was
    /// created.
    UsedUp,
}

/// The creation tokens of a name, for storage that executes requests with the same token once, such as the
/// `ClientToken` of EC2 or the `clientToken` of many other clouds.
///
/// A token remains used up after the item is deleted: a repeated request returns the deleted item, or an
/// error such as `IdempotentParameterMismatch`. Each name therefore has a sequence of tokens, its
/// generations. [`find_or_create`](Self::find_or_create) takes the first one that is not used up. The
/// sequence is always the same, so two calls at the same time use the same token, and the storage creates one
/// item.
///
/// ```
/// use std::time::Duration;
///
/// use cofferdam_guest::{
///     Result, StorageError, http::{Method, Request, Response},
///     idempotent::{CreationTokens, ExistingComparison, TokenOutcome}, mock,
/// };
///
/// #[derive(serde::Deserialize)]
/// struct Volume {
///     id: String,
///     bytes: u64,
/// }
///
/// fn create(name: &str, bytes: u64) -> Result<Volume> {
///     CreationTokens::new("volume", name).settle(Duration::from_secs(2)).find_or_create(
///         || {
///             let response = Request::get("http://cloud/volumes").query("tag", name).send()?;
///             let found: Vec<Volume> = response.ok_or(|_| None)?.json()?;
///             Ok(found.into_iter().next())
///         },
///         |found| ExistingComparison::new("volume", name).equal("size", &found.bytes, &bytes).check(),
///         |token| {
///             let request = Request::post("http://cloud/volumes").json(&(name, bytes, token))?;
///             let response = request.send()?;
///             match response.status {
///                 409 => Ok(TokenOutcome::UsedUp),
///                 _ => response.ok_or(|_| None)?.json().map(TokenOutcome::Created),
///             }
///         },
///     )
/// }
///
/// // An item with the first token was created and deleted before.
/// let used_up = CreationTokens::new("volume", "pvc-1").token(0);
/// let _host = mock::MockHost::new()
///     .on(Method::Get, "http://cloud/", |_| Ok(Response::new(200).with_body("[]")))
///     .on(Method::Post, "http://cloud/", move |request| {
///         let (_, bytes, token): (String, u64, String) = request.json().unwrap();
///         Ok(match token == used_up {
///             true => Response::new(409),
///             false => Response::new(201).with_body(format!(r#"{{"id": "vol-2", "bytes": {bytes}}}"#)),
///         })
///     })
///     .install();
/// assert_eq!(create("pvc-1", 8).unwrap().id, "vol-2");
/// ```
#[derive(Clone, Debug)]
#[must_use = "tokens create nothing"]
pub struct CreationTokens<'a> {
    scope: &'a str,
    name: &'a str,
    settle: Duration,
}

impl<'a> CreationTokens<'a> {
    /// The tokens of a name. `scope` separates names that the storage keeps apart, such as `volume` and
    /// `snapshot`.
    pub fn new(scope: &'a str, name: &'a str) -> Self {
        Self { scope, name, settle: Duration::ZERO }
    }

    /// Sets the longest delay until the storage shows an item that it has created. The default is zero, for
    /// storage whose lookups show every created item.
    ///
    /// [`find_or_create`](Self::find_or_create) waits for this time before it takes a token as used up by a
    /// deleted item, once in a call. With a time that is too short, an item that `find` does not show yet may
    /// get a second one beside it.
    pub fn settle(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }

    /// The token of a generation, counted from 0: 32 hexadecimal digits. It is the same in every version of
    /// the SDK, so that an upgraded driver finds the items of earlier calls.
    ///
    /// ```
    /// use cofferdam_guest::idempotent::CreationTokens;
    ///
    /// let tokens = CreationTokens::new("volume", "pvc-1");
    /// assert_eq!(tokens.token(0), "443465787969f1d29d21f26d8eee080b");
    /// assert_ne!(tokens.token(1), tokens.token(0));
    /// assert_ne!(CreationTokens::new("snapshot", "pvc-1").token(0), tokens.token(0));
    /// ```
    pub fn token(&self, generation: u32) -> String {
        // The length of the scope keeps `a` and `bc` apart from `ab` and `c`.
        let mut token = sha256_hex(format!("{} {} {} {generation}", self.scope.len(), self.scope, self.name));
        token.truncate(TOKEN_DIGITS);
        token
    }

    /// Returns the item of the name, or creates it with the first token that is not used up.
    ///
    /// `check` compares an item that exists with the request;
    /// [`ExistingComparison`](super::ExistingComparison) helps. It also applies to an item that `create`
    /// returns, because an earlier request with the same token may have created it. `create` must not report
    /// [`TokenOutcome::UsedUp`] if the item may still be created.
    ///
    /// Every call starts with the first token. Each token that is used up costs one `create` and one `find`.
    /// The call waits for the [settle](Self::settle) time once: after the first used-up token, or after a
    /// final error of `create`. The wait covers all items that earlier calls have created. It does not cover
    /// an item of other arguments that another call creates meanwhile: that item may get a second one beside
    /// it.
    ///
    /// # Errors
    ///
    /// - The errors of `find`, `check` and `create`. An error of `find` that does not tell whether the item
    ///   exists, such as `unavailable` or `permission-denied`, is never final. After a final error of
    ///   `create`, `find` runs again, so that an item of an earlier call whose response was lost is returned
    ///   in place of the error.
    /// - [`unavailable`](StorageError::unavailable) if 16 tokens are used up. The storage forgets tokens
    ///   after some time, so the outcome is unknown and the call can be repeated.
    pub fn find_or_create<T>(
        &self,
        mut find: impl FnMut() -> Result<Option<T>>,
        check: impl FnOnce(&T) -> Result<()>,
        mut create: impl FnMut(&str) -> Result<TokenOutcome<T>>,
    ) -> Result<T> {
        let mut find = || find().map_err(StorageError::not_final_without_answer);
        let checked = |item: T| check(&item).map(|()| item);
        // One wait shows every item that was created before this call. A wait for each used-up token could
        // exceed the deadline of every call.
        let mut pause = self.settle;
        let mut settle_once = || poll::sleep(std::mem::take(&mut pause));
        for generation in 0..MAX_GENERATIONS {
            if let Some(found) = find()? {
                return checked(found);
            }
            match create(&self.token(generation)).map_err(StorageError::final_unless_changed) {
                Ok(TokenOutcome::Created(item)) => return checked(item),
                Ok(TokenOutcome::UsedUp) => settle_once(),
                Err(error) if error.finality == Finality::Final => {
                    settle_once();
                    return find()?.map_or(Err(error), checked);
                }
                Err(error) => return Err(error),
            }
        }
        match find()? {
            Some(found) => checked(found),
            None => Err(StorageError::unavailable(format!(
                "the storage remembers {MAX_GENERATIONS} creations of {:?}",
                self.name
            ))),
        }
    }
}

#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
