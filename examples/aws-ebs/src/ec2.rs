//! Client of the EC2 Query API.

use std::{collections::BTreeMap, time::Duration};

use cofferdam_guest::{
    ErrorKind, Result, StorageError,
    http::{Request, Response},
    poll, settings,
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::sign;
use crate::xml::{Error, Page, Refusal};

/// The codes by which EC2 refuses an action with a status 5xx.
const REFUSALS: [&str; 4] =
    ["InsufficientVolumeCapacity", "RequestLimitExceeded", "Throttling", "Unavailable"];
/// Longest delay until EC2 lists an item that it has created, with the difference of its servers' clocks.
pub(crate) const SETTLE: Duration = Duration::from_secs(2);
/// Timeout of a request. The caller retries after it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until EC2 shows the result of an action, which takes seconds. The error after 20 s is
/// `in-progress`, and the repeated call continues to wait.
pub(crate) fn wait_until<T>(attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    poll::until(Duration::from_secs(1), Duration::from_secs(20), attempt)
}

/// Returns true if a handle can be an ID of EC2: a prefix such as `vol-`, and hexadecimal digits.
pub(crate) fn is_id(prefix: &str, handle: &str) -> bool {
    let digits = handle.strip_prefix(prefix).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// An action with its parameters.
#[derive(Clone, Debug)]
#[must_use = "an action does nothing until it is sent"]
pub(crate) struct Action {
    name: &'static str,
    parameters: Vec<(String, String)>,
}

impl Action {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, parameters: Vec::new() }.set("Action", name).set("Version", "2016-11-15")
    }

    /// An action that describes the items with a value, in which EC2 takes `*` and `?` as wildcards.
    pub(crate) fn describe(name: &'static str, filter: &str, value: &str) -> Self {
        // 500 volumes with their tags are about 1 MiB of XML.
        let action = Self::new(name).set("MaxResults", 500);
        action.set("Filter.1.Name", filter).set("Filter.1.Value.1", value)
    }

    pub(crate) fn set(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.parameters.push((key.into(), value.to_string()));
        self
    }

    pub(crate) fn set_all(self, parameters: &BTreeMap<&str, String>) -> Self {
        parameters.iter().fold(self, |action, (key, value)| action.set(*key, value))
    }

    /// Tags the resource that the action creates.
    pub(crate) fn tag(self, resource: &str, tags: &[(&str, &str)]) -> Self {
        let action = self.set("TagSpecification.1.ResourceType", resource);
        tags.iter().zip(1..).fold(action, |action, ((key, value), index)| {
            let tag = format!("TagSpecification.1.Tag.{index}");
            action.set(format!("{tag}.Key"), key).set(format!("{tag}.Value"), value)
        })
    }
}

/// The client. Its fields are the settings of the operator.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Ec2 {
    /// Such as `https://ec2.us-east-1.amazonaws.com/`.
    endpoint: String,
    /// Such as `us-east-1`.
    region: String,
    access_key_id: String,
}

impl Ec2 {
    pub(crate) fn new() -> Result<Self> {
        settings::parse()
    }

    /// Sends an action. Returns `None` if EC2 refuses it with one of the codes.
    pub(crate) fn send<T: DeserializeOwned>(&self, action: &Action, codes: &[&str]) -> Result<Option<T>> {
        let Self { endpoint, region, access_key_id } = self;
        let request = Request::post(endpoint).form(&action.parameters).timeout(REQUEST_TIMEOUT);
        let request = request
            .refused_if(|response| error(response).is_some_and(|error| REFUSALS.contains(&&*error.code)));
        let request = request.sign_with(|request| sign::sign(request, access_key_id, [region, "ec2"]));
        // An action that describes changes nothing, and a tag has no effect by itself.
        let is_harmless = action.name.starts_with("Describe") || action.name.ends_with("Tags");
        let response = if is_harmless { request.read_only() } else { request }.send()?;
        if response.is_success() {
            return quick_xml::de::from_str(&response.text())
                .map(Some)
                .map_err(|error| response.unreadable(&error));
        }
        match error(&response) {
            Some(Error { code, .. }) if codes.contains(&code.as_str()) => Ok(None),
            Some(Error { code, message }) => {
                // The error quotes the body: as a text in place of XML.
                let error = response.with_body(format!("{}: {code}: {message}", action.name)).error();
                Err(with_kind(error, &code))
            }
            // Such as the HTML of a load balancer.
            None => Err(response.error()),
        }
    }

    /// Returns all items that an action describes.
    pub(crate) fn describe<T: DeserializeOwned>(&self, action: &Action) -> Result<Vec<T>> {
        let (mut items, mut next) = (Vec::new(), action.clone());
        while let Some(page) = self.send::<Page<T>>(&next, &[])? {
            items.extend(page.items);
            let Some(token) = page.next_token.filter(|token| !token.is_empty()) else { break };
            next = action.clone().set("NextToken", token);
        }
        Ok(items)
    }
}

/// The error in an answer.
fn error(response: &Response) -> Option<Error> {
    let refusal: Refusal = quick_xml::de::from_str(&response.text()).ok()?;
    refusal.errors.into_iter().next()
}

/// The error with the kind that a code of EC2 means. For other codes, that of the status remains.
fn with_kind(mut error: StorageError, code: &str) -> StorageError {
    error.kind = match code {
        "AuthFailure" | "InvalidClientTokenId" | "RequestExpired" | "SignatureDoesNotMatch" => {
            error.message += "; check `access-key-id`, `secret-access-key` and the clock of this machine";
            ErrorKind::Unauthenticated
        }
        // Another modification of the volume has not ended.
        "IncorrectModificationState" => return StorageError::in_progress(error.message),
        // EC2 did nothing, and accepts the same later: a modification after hours.
        "VolumeModificationRateExceeded" => return later(error, Duration::from_mins(10)),
        "RequestLimitExceeded" | "SnapshotCreationPerVolumeRateExceeded" | "Throttling" | "Unavailable" => {
            return later(error, Duration::from_secs(5));
        }
        "InsufficientVolumeCapacity" => {
            // Another zone may have space: the scheduler selects again.
            error = error.without_effect().final_unless_changed();
            ErrorKind::ResourceExhausted
        }
        "InvalidZone.NotFound" => ErrorKind::InvalidArgument,
        "IncorrectState" | "IncorrectInstanceState" | "VolumeInUse" | "InvalidSnapshot.InUse" => {
            ErrorKind::FailedPrecondition
        }
        "UnauthorizedOperation" => ErrorKind::PermissionDenied,
        _ if code.ends_with("LimitExceeded") => ErrorKind::ResourceExhausted,
        _ if code.ends_with(".NotFound") || code.ends_with(".Malformed") => ErrorKind::NotFound,
        _ => error.kind,
    };
    error
}

/// The error of an action that had no effect and can be repeated.
fn later(error: StorageError, delay: Duration) -> StorageError {
    StorageError::unavailable(error.message).without_effect().final_unless_changed().retry_after(delay)
}
