//! A warning at the start if another snapshot-controller works in the cluster: somebody renews its Lease.
//!
//! Two snapshot-controllers in one namespace exclude each other, if both elect a leader. Upstream's does not
//! by default, and a managed cluster may run one in `kube-system`.

use std::{collections::BTreeSet, time::Duration};

use cofferdam_controllers::snapshot_controller::{self, LEASE_NAME};
use k8s_openapi::api::{authorization::v1::ResourceAttributes, coordination::v1::Lease};
use kube::Api;

use crate::{client::one_line, config::Configuration, rights};

/// Namespace of the controllers of managed clusters.
const SYSTEM_NAMESPACE: &str = "kube-system";
/// Longest time between the two reads of a Lease.
const MAX_LEASE_DURATION: Duration = Duration::from_secs(60);

/// Warns, in the background, about each Lease of a snapshot-controller that is being renewed in `namespace`
/// or `kube-system`, if this process has the role. `own_leases` is the namespace of the Lease that this
/// process acquires itself; `None` without leader election. There is no warning about a Lease that the
/// account may not read.
pub(crate) fn warn_if_lease_is_renewed(
    configuration: &Configuration,
    client: &kube::Client,
    namespace: &str,
    own_leases: Option<&str>,
) {
    if !configuration.role.cluster.contains(&snapshot_controller::ROLE) {
        return;
    }
    for namespace in observed_namespaces(namespace, own_leases) {
        let (client, namespace) = (client.clone(), namespace.to_owned());
        tokio::spawn(async move {
            match renewing_holder(&client, &namespace).await {
                Ok(None) => {}
                Ok(Some(holder)) => tracing::warn!(
                    "Lease {namespace}/{LEASE_NAME} is being renewed by {holder}: another snapshot-controller works \
                     in this cluster; expected one"
                ),
                Err(error) => tracing::debug!(
                    namespace,
                    error = one_line(&error),
                    "the Lease of another snapshot-controller cannot be read"
                ),
            }
        });
    }
}

/// The namespaces whose Leases show another snapshot-controller. A Lease that this process acquires itself
/// does not.
fn observed_namespaces<'a>(namespace: &'a str, own_leases: Option<&str>) -> BTreeSet<&'a str> {
    [namespace, SYSTEM_NAMESPACE].into_iter().filter(|namespace| Some(*namespace) != own_leases).collect()
}

/// The holder of a Lease that is renewed within its duration. `None` if there is no such Lease, or if the
/// account may not read it.
///
/// # Errors
/// A request failed.
async fn renewing_holder(client: &kube::Client, namespace: &str) -> Result<Option<String>, kube::Error> {
    let attributes = ResourceAttributes {
        verb: Some("get".to_owned()),
        group: Some("coordination.k8s.io".to_owned()),
        version: Some("v1".to_owned()),
        resource: Some("leases".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(LEASE_NAME.to_owned()),
        ..Default::default()
    };
    if !rights::is_allowed(client, attributes).await {
        return Ok(None);
    }
    let leases = Api::<Lease>::namespaced(client.clone(), namespace);
    let Some(first) = leases.get_opt(LEASE_NAME).await? else { return Ok(None) };
    let Some((_, duration)) = held_by(&first) else { return Ok(None) };
    tokio::time::sleep(duration.min(MAX_LEASE_DURATION)).await;
    let is_new = |lease: &Lease| lease.metadata.resource_version != first.metadata.resource_version;
    let second = leases.get_opt(LEASE_NAME).await?.filter(is_new);
    let holder = second.as_ref().and_then(held_by);
    Ok(holder.map(|(holder, _)| holder.to_owned()))
}

/// The holder of a Lease, and the duration within which it renews the Lease. `None` if nobody holds it.
fn held_by(lease: &Lease) -> Option<(&str, Duration)> {
    let spec = lease.spec.as_ref()?;
    let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
    let seconds = u64::try_from(spec.lease_duration_seconds?).ok()?;
    Some((holder, Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use http::{Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_lease_that_the_process_acquires_is_not_observed() {
        #[rustfmt::skip] // one row per case
        let table: [(&str, Option<&str>, &[&str]); 4] = [
            ("storage",     None,                &["kube-system", "storage"]),
            ("storage",     Some("storage"),     &["kube-system"]),
            ("kube-system", Some("kube-system"), &[]),
            ("storage",     Some("kube-system"), &["storage"]),
        ];
        for (namespace, own_leases, expected) in table {
            let found: Vec<_> = observed_namespaces(namespace, own_leases).into_iter().collect();
            assert_eq!(found, expected, "{namespace} {own_leases:?}");
        }
    }

    /// A client of an API that allows or denies the reads of the Lease, and returns the next of `leases` for
    /// each; `Null` is a Lease that does not exist.
    fn client(is_allowed: bool, leases: [Value; 2]) -> kube::Client {
        let reads = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let is_review = request.uri().path().ends_with("selfsubjectaccessreviews");
            let found = match is_review {
                true => json!({"spec": {}, "status": {"allowed": is_allowed}}),
                false => leases.get(reads.fetch_add(1, Ordering::Relaxed)).cloned().unwrap_or_default(),
            };
            async move {
                let missing = json!({"status": "Failure", "reason": "NotFound", "code": 404});
                let code = if found.is_null() { StatusCode::NOT_FOUND } else { StatusCode::OK };
                let body = if found.is_null() { missing } else { found };
                let response = Response::builder().status(code);
                Ok::<_, tower::BoxError>(response.body(Body::from(body.to_string().into_bytes()))?)
            }
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_lease_that_is_renewed_has_a_holder() {
        let lease = |version: &str, holder: &str| {
            json!({
                "metadata": {"name": LEASE_NAME, "resourceVersion": version},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
            })
        };
        #[rustfmt::skip] // one row per case
        let table = [
            ("renewed",                true,  [lease("1", "a"), lease("2", "a")], Some("a")),
            ("left by a dead process", true,  [lease("1", "a"), lease("1", "a")], None),
            ("taken over",             true,  [lease("1", "a"), lease("2", "b")], Some("b")),
            ("released",               true,  [lease("1", ""),  lease("2", "")],  None),
            ("deleted",                true,  [lease("1", "a"), Value::Null],     None),
            ("missing",                true,  [Value::Null,     Value::Null],     None),
            ("may not be read",        false, [lease("1", "a"), lease("2", "a")], None),
        ];
        for (case, is_allowed, leases, expected) in table {
            let found = renewing_holder(&client(is_allowed, leases), "storage").await.unwrap();
            assert_eq!(found.as_deref(), expected, "{case}");
        }
    }
}
