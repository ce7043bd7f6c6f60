//! A backend that uses the imports `http`, `session`, `secrets`, `reveal`, `sign` and `deadline`. The
//! parameter `script` of a create is a list of steps in JSON, and the volume's context has the result of each
//! step. The result of a step whose import returns an error is this error, except that `fail-with-body` fails
//! the create.
#![forbid(unsafe_code)]

use cofferdam_guest::{
    Backend, CreateRequest, Description, Readiness, Result, StorageError, ValidateRequest, Validation,
    Volume,
    bindings::cofferdam::storage::{deadline, http, reveal, secrets, session, sign, types::Secret},
    digest, log,
};
use serde::Deserialize;

struct Net;

cofferdam_guest::export!(Net);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Step {
    Acquire(String),
    Put(String, String, u64),
    Release(String),
    Invalidate(String, u64),
    /// Sends a request. The result is the status, the body, and the headers of the response except `date` and
    /// `content-length`.
    Send(Request),
    /// Sends a request. The result is the status and the size of the response's body.
    Measure(Request),
    /// Sends a request, and fails with the response's body, which it also logs.
    FailWithBody(Request),
    /// Sends a request. The result is the response's body, even if it contains a secret.
    ReturnBody(Request),
    /// Acquires the session entry of a key. If there is none, sends a request and stores the response's body
    /// as the entry.
    Login(String, Request),
    /// Sends a request, and stores the response's body as the entry of a key. Returns no part of it.
    StoreLogin(String, Request),
    /// Acquires the session entry of a key, and fails with its value, which it also logs.
    FailWithLogin(String),
    /// Reveals a secret. The result is its length in bytes, or that there is no such secret.
    Reveal(String),
    /// The HMAC-SHA256 of a message with the key in a secret, and the SHA-256 of secret and message, both in
    /// hexadecimal digits.
    Sign(String, String),
    /// The time until the host ends the call, in milliseconds.
    RemainingTime,
    Trap,
}

#[derive(Deserialize)]
struct Request {
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    /// Length in bytes of a generated body, which replaces `body`.
    body_bytes: Option<usize>,
    #[serde(default)]
    authorization: RequestAuthorization,
    timeout_ms: Option<u64>,
}

/// Credentials of a request. The last text is the name of a secret; for `HiddenBasic` both texts are.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RequestAuthorization {
    #[default]
    None,
    Basic(String, String),
    HiddenBasic(String, String),
    Bearer(String),
    Header(String, String),
}

impl Backend for Net {
    fn describe() -> Result<Description> {
        Ok(Description::new("net.example", "1"))
    }

    fn probe() -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    fn create_volume(request: CreateRequest) -> Result<Volume> {
        let script = request.parameters.iter().find(|(key, _)| key == "script");
        let script = script.map_or("[]", |(_, script)| script);
        let steps: Vec<Step> = serde_json::from_str(script).map_err(|error| {
            StorageError::invalid_argument(format!("the script is not readable: {error}"))
        })?;
        let mut volume = Volume::new(format!("v-{}", request.name), 1);
        for (number, step) in steps.into_iter().enumerate() {
            volume.context.push((number.to_string(), run_step(step)?));
        }
        Ok(volume)
    }

    fn delete_volume(_handle: String) -> Result<()> {
        Ok(())
    }

    fn validate(_request: ValidateRequest) -> Result<Validation> {
        Ok(Validation::Confirmed)
    }
}

fn run_step(step: Step) -> Result<String> {
    Ok(match step {
        Step::Acquire(key) => describe_acquired(session::acquire(&key)),
        Step::Put(key, value, ttl_ms) => match session::put(&key, value.as_bytes(), ttl_ms) {
            Ok(generation) => format!("generation {generation}"),
            Err(error) => format!("{error:?}"),
        },
        Step::Release(key) => {
            session::release(&key);
            "released".to_owned()
        }
        Step::Invalidate(key, generation) => {
            session::invalidate(&key, generation);
            "invalidated".to_owned()
        }
        Step::Send(request) => match send(&request)? {
            Ok(response) => describe_response(&response),
            Err(error) => describe_error(&error),
        },
        Step::Measure(request) => match send(&request)? {
            Ok(response) => format!("{} with {} bytes", response.status, response.body.len()),
            Err(error) => describe_error(&error),
        },
        Step::FailWithBody(request) => match send(&request)? {
            Ok(response) => {
                let body = text(&response);
                log::warn(format_args!("the server said {body}"));
                return Err(StorageError::unavailable(body));
            }
            Err(error) => return Err(StorageError::unavailable(error.message)),
        },
        Step::ReturnBody(request) => match send(&request)? {
            Ok(response) => text(&response),
            Err(error) => describe_error(&error),
        },
        Step::Login(key, request) => match session::acquire(&key) {
            Ok(session::Acquired::Locked) => match send(&request)? {
                Ok(response) => {
                    let made = session::put(&key, &response.body, 60_000);
                    made.map_or_else(|error| format!("{error:?}"), |_| format!("made {}", text(&response)))
                }
                Err(error) => describe_error(&error),
            },
            acquired => describe_acquired(acquired),
        },
        Step::StoreLogin(key, request) => match send(&request)? {
            Ok(response) => session::put(&key, &response.body, 60_000)
                .map_or_else(|error| format!("{error:?}"), |_| "made".to_owned()),
            Err(error) => describe_error(&error),
        },
        Step::FailWithLogin(key) => match session::acquire(&key) {
            Ok(session::Acquired::Found(entry)) => {
                let token = String::from_utf8_lossy(&entry.value).into_owned();
                log::warn(format_args!("the token {token} was refused"));
                return Err(StorageError::unavailable(format!("the token {token} was refused")));
            }
            acquired => describe_acquired(acquired),
        },
        Step::Reveal(name) => match secrets::get(&name) {
            Some(secret) => format!("{} bytes", reveal::reveal(&secret).len()),
            None => "no such secret".to_owned(),
        },
        Step::Sign(name, message) => {
            let (secret, message) = (secret(&name)?, message.into_bytes());
            let key = sign::Key { secret: &secret, encoding: sign::Encoding::Text, prefix: Vec::new() };
            let signature = sign::hmac(sign::Algorithm::Sha256, &key, std::slice::from_ref(&message));
            let parts = [sign::Part::Secret(&secret), sign::Part::Bytes(message)];
            let hash = digest::hex(sign::digest(sign::Algorithm::Sha256, &parts));
            match signature {
                Ok(signature) => format!("{} {hash}", digest::hex(signature)),
                Err(error) => format!("{error:?} {hash}"),
            }
        }
        Step::RemainingTime => deadline::remaining_ms().to_string(),
        Step::Trap => trap(),
    })
}

fn describe_acquired(acquired: std::result::Result<session::Acquired, session::SessionError>) -> String {
    match acquired {
        Ok(session::Acquired::Found(entry)) => format!("found {}", String::from_utf8_lossy(&entry.value)),
        Ok(session::Acquired::Locked) => "locked".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

fn send(request: &Request) -> Result<std::result::Result<http::Response, http::HttpError>> {
    let method = match request.method.as_str() {
        "GET" => http::Method::Get,
        "HEAD" => http::Method::Head,
        "POST" => http::Method::Post,
        "PUT" => http::Method::Put,
        "PATCH" => http::Method::Patch,
        "DELETE" => http::Method::Delete,
        _ => http::Method::Options,
    };
    let body = request.body.clone().map(String::into_bytes);
    let names: [Option<&str>; 2] = match &request.authorization {
        RequestAuthorization::None => [None, None],
        RequestAuthorization::Basic(_, password) => [None, Some(password)],
        RequestAuthorization::HiddenBasic(user, password) => [Some(user), Some(password)],
        RequestAuthorization::Bearer(token) => [None, Some(token)],
        RequestAuthorization::Header(_, value) => [None, Some(value)],
    };
    let [user, password] = names.map(|name| name.map(secret).transpose());
    let (user, password) = (user?, password?);
    let authorization = match (&request.authorization, &user, &password) {
        (RequestAuthorization::Basic(user, _), _, Some(password)) => {
            let user = http::UserName::Plain(user.clone());
            Some(http::Authorization::Basic(http::Basic { user, password }))
        }
        (RequestAuthorization::HiddenBasic(..), Some(user), Some(password)) => {
            let user = http::UserName::Hidden(user);
            Some(http::Authorization::Basic(http::Basic { user, password }))
        }
        (RequestAuthorization::Bearer(_), _, Some(token)) => Some(http::Authorization::Bearer(token)),
        (RequestAuthorization::Header(name, _), _, Some(value)) => {
            Some(http::Authorization::Header(http::SecretHeader { name: name.clone(), value }))
        }
        _ => None,
    };
    Ok(http::send(&http::Request {
        method,
        url: request.url.clone(),
        headers: request.headers.clone(),
        body: request.body_bytes.map(|bytes| vec![b'x'; bytes]).or(body),
        authorization,
        timeout_ms: request.timeout_ms,
    }))
}

fn secret(name: &str) -> Result<Secret> {
    secrets::get(name).ok_or_else(|| StorageError::invalid_argument(format!("there is no secret {name:?}")))
}

fn text(response: &http::Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

/// The status, the headers except `date` and `content-length`, and the body.
fn describe_response(response: &http::Response) -> String {
    let mut shown = response.status.to_string();
    for (name, value) in &response.headers {
        if name != "date" && name != "content-length" {
            shown.push_str(&format!(" {name}={value}"));
        }
    }
    format!("{shown} {}", text(response))
}

fn describe_error(error: &http::HttpError) -> String {
    format!("{:?} maybe-sent={} {}", error.failure, error.maybe_sent, error.message)
}

#[expect(clippy::panic, reason = "a trap is what the step is for")]
fn trap() -> ! {
    panic!("as the script says")
}
