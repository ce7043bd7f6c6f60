//! Secrets, read when they are needed: never watched, never kept.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cofferdam_domain::{
    storage::{Secret, Secrets},
    volume::SecretRef,
};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::writer::{ApiError, Writer};

/// What a Secret holds, as texts: drivers get nothing else.
///
/// # Errors
/// [`WriteError`]; `NotFound` where there is no such Secret, `Answer` where a value is no text. None of them
/// holds a value.
pub async fn read(writer: &Writer, secret: &SecretRef) -> Result<Secrets, ApiError> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        // Base64 has nothing that JSON escapes: it need not be copied.
        #[serde(borrow)]
        data: Option<BTreeMap<String, &'a str>>,
    }
    let target = format!("Secret {secret}");
    let path = format!("/api/v1/namespaces/{}/secrets/{}", secret.namespace, secret.name);
    let answer = Zeroizing::new(writer.read(&path, &target).await?);
    let unreadable = |message: String| ApiError::InvalidResponse { target: target.clone(), message };
    // The parser's own words may repeat what it has read.
    let wire: Wire<'_> =
        serde_json::from_str(&answer).map_err(|_| unreadable("it is not a Secret".to_owned()))?;
    let texts = wire.data.into_iter().flatten().map(|(key, value)| {
        let bytes = STANDARD.decode(value).map(Zeroizing::new).ok();
        let text = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
        match text {
            Some(text) => Ok((key, Secret::new(text))),
            None => Err(unreadable(format!("data.{key} is no text of UTF-8"))),
        }
    });
    texts.collect()
}
