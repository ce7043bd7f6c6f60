//! AWS Signature Version 4.

use cofferdam_guest::sign::{Algorithm, Key};
use cofferdam_guest::{Result, ambient, digest, http::FinishedRequest, secrets, time};

/// Adds the headers `x-amz-date` and `authorization` for a service in a region. The host computes the
/// signature with the secret `secret-access-key`, which the driver never sees.
///
/// The path is signed as it is sent. That is right for `/`, the only path of EC2; other services encode it
/// twice.
///
/// # Errors
///
/// - `failed-precondition` if the call has no secret `secret-access-key`.
pub(crate) fn sign(
    request: &mut FinishedRequest<'_>,
    key_id: &str,
    [region, service]: [&str; 2],
) -> Result<()> {
    let now = ambient::now();
    let (date, timestamp) = (time::to_iso_basic_date(now), time::to_iso_basic(now));
    request.set_header("x-amz-date", timestamp.as_str());
    let headers = request.canonical_headers();
    let header_lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let names = headers.into_keys().collect::<Vec<_>>().join(";");
    let (method, path, query) = (request.method_name(), request.path(), request.canonical_query());
    let canonical_request =
        [method, path, &query, &header_lines, &names, &request.body_sha256_hex()].join("\n");

    let scope = [&date, region, service, "aws4_request"].join("/");
    let digest = digest::sha256_hex(canonical_request);
    let string_to_sign = ["AWS4-HMAC-SHA256", &timestamp, &scope, &digest].join("\n");
    let secret = secrets::require("secret-access-key")?;
    let messages = [&date, region, service, "aws4_request", &string_to_sign];
    let signature = digest::hex(Key::new(&secret).prefix("AWS4").hmac(Algorithm::Sha256, &messages)?);
    let credential = format!("Credential={key_id}/{scope}");
    let authorization =
        format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}");
    request.set_header("authorization", authorization);
    Ok(())
}
