//! Secrets. They are read on demand and neither watched nor cached.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cofferdam_domain::{
    storage::{Secret, Secrets},
    volume::SecretRef,
};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::{api::ApiError, writer::Writer};

/// Reads the values of a Secret as text.
///
/// # Errors
/// [`ApiError::NotFound`] if the Secret does not exist, [`ApiError::InvalidResponse`] if the response is not
/// a Secret or a value is not UTF-8 text in Base64, and the other errors of a read. No error contains a
/// value.
pub async fn read(writer: &Writer, secret: &SecretRef) -> Result<Secrets, ApiError> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        // Base64 needs no JSON escapes, so it can be borrowed.
        #[serde(borrow)]
        data: Option<BTreeMap<String, &'a str>>,
    }
    let target = format!("Secret {secret}");
    let path = format!("/api/v1/namespaces/{}/secrets/{}", secret.namespace, secret.name);
    let response = Zeroizing::new(writer.api().read(&path, &target).await?);
    // The parser's error may contain a value, so it is dropped.
    let wire: Wire<'_> =
        serde_json::from_str(&response).map_err(|_| ApiError::invalid_response(&target, "not a Secret"))?;
    let texts = wire.data.into_iter().flatten().map(|(key, value)| {
        let bytes = STANDARD.decode(value).map(Zeroizing::new).ok();
        let text = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
        match text {
            Some(text) => Ok((key, Secret::new(text))),
            None => Err(ApiError::invalid_response(&target, format!("data.{key} is not UTF-8 text"))),
        }
    });
    texts.collect()
}
