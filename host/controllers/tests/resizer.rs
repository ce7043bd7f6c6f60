//! Status of claims whose expansion or modification is infeasible.

use std::time::Duration;

use cofferdam_controllers::Role;
use cofferdam_domain::storage::ErrorKind;
use cofferdam_sim::{
    ApiFault, DriverFault, FaultKind, ResizingBehavior, Simulation,
    UserAction::{Create, Patch, Settle, Until},
    WaitFor,
    objects::{attributes_class, claim, class, with},
};
use serde_json::{Value, json};

const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a";
const STATUS: &str = "/api/v1/namespaces/default/persistentvolumeclaims/a/status";

/// Requests an infeasible change of a claim, and waits for `event`. The first write of the claim's status
/// whose body contains `body_contains` is rejected with Conflict. Returns the status a minute after the
/// request.
async fn status_after_failure(
    claim_spec: Value,
    body_contains: &'static str,
    resizing: ResizingBehavior,
    event: &'static str,
) -> Value {
    let faults =
        vec![ApiFault { method: "PATCH", path_prefix: STATUS, body_contains, kind: FaultKind::Conflict }];
    let simulation =
        Simulation::new(&Role::ALL, Vec::new(), Vec::new()).with_resizing(resizing).with_api_faults(faults);
    let actions = [
        Create(with(class("gold"), &json!({"allowVolumeExpansion": true}))),
        Create(attributes_class("fast", "9")),
        Create(claim("a", "gold")),
        Settle,
        Patch(CLAIM, json!({"spec": claim_spec})),
        Until(WaitFor::Event(event)),
    ];
    let read_claim = async {
        // `Settle` waits for an hour before the request.
        tokio::time::sleep(Duration::from_secs(3600 + 60)).await;
        simulation.object(CLAIM).await
    };
    let ((outcome, _), found) = tokio::join!(simulation.run(&actions, None), read_claim);
    assert_eq!((outcome.violations, outcome.unused_faults), (Vec::new(), Vec::new()));
    found.and_then(|claim| claim.get("status").cloned()).unwrap_or_default()
}

/// An infeasible size or class is recorded in the claim's status even if the first write of it gets a
/// Conflict. Without the record, the next process would repeat the infeasible request first.
#[tokio::test(start_paused = true)]
async fn an_infeasible_change_is_recorded_despite_concurrent_updates() {
    let infeasible = |kind| vec![DriverFault::Refuse(kind); 100];
    let expansion =
        ResizingBehavior { expand_faults: infeasible(ErrorKind::OutOfRange), ..ResizingBehavior::default() };
    let claim_spec = json!({"resources": {"requests": {"storage": "2Gi"}}});
    let status = status_after_failure(
        claim_spec,
        "ControllerResizeInfeasible",
        expansion,
        "a Warning VolumeResizeFailed",
    )
    .await;
    let state = status.pointer("/allocatedResourceStatuses/storage");
    assert_eq!(state, Some(&json!("ControllerResizeInfeasible")));
    let modification = ResizingBehavior {
        modify_faults: infeasible(ErrorKind::InvalidArgument),
        ..ResizingBehavior::default()
    };
    let claim_spec = json!({"volumeAttributesClassName": "fast"});
    let status =
        status_after_failure(claim_spec, "Infeasible", modification, "a Warning VolumeModifyFailed").await;
    assert_eq!(status.pointer("/modifyVolumeStatus/status"), Some(&json!("Infeasible")));
}
