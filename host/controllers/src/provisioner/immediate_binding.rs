//! Provisioning by a node-local driver for a claim without a selected node: the process of each node attempts
//! to write its own node to the claim's annotation `selected-node`. The process whose write succeeds
//! provisions the volume.

use cofferdam_cluster::{ApiError, observer::StepResult, queue::Action, writer::PatchTarget};
use cofferdam_domain::{
    Claim, DriverName, NodeName, names,
    storage::{Ability, CapacityQuery, CreateVolume, Secrets},
};
use serde_json::json;

use super::reconcile::Provisioner;
use crate::{events::EventSpec, reconcile::action_for_write_error};

impl Provisioner {
    /// Selects the node of this process for the claim, once this process's delay for the claim is over and
    /// unless the driver reports too little capacity for `request`. Returns `None` after a successful write:
    /// the claim then has to be decided again.
    ///
    /// The claim is that of the decision: a newer one may have a selected node already.
    pub(super) async fn select_node(
        &self,
        claim: &Claim,
        node: &NodeName,
        request: Option<CreateVolume>,
    ) -> Option<Action> {
        let Some(deployment) = &self.context.node_deployment else { return Some(Action::Done) };
        let uid = &claim.meta.uid;
        let recorder = self.context.recorders.of_claim(&claim.key);
        if let Some(delay) = self.contests.lock().next_attempt(deployment, uid) {
            return Some(Action::RequeueAfter(delay));
        }
        if let Some(request) = request
            && let Some(text) = self.capacity_shortage(claim, node, request).await
        {
            recorder.record(StepResult::Waiting, text.clone(), None);
            if self.contests.lock().warn_once(uid) {
                let component = self.component_for(claim);
                self.context.events.emit(claim, &component, EventSpec::warning("ProvisioningFailed", text));
            }
            return Some(Action::RequeueAfter(self.contests.lock().time_left(uid)));
        }
        let patch = json!({"metadata": {"annotations": {names::SELECTED_NODE: node}}});
        let write = self.context.writer.merge_patch::<Claim>(
            &claim.key,
            PatchTarget::Object,
            claim.meta.resource_version,
            patch,
        );
        let error = recorder.record_effect(&format!("selects node {node}"), write).await.err()?;
        if matches!(error, ApiError::Conflict(_)) {
            self.contests.lock().retry_now(uid);
        }
        Some(action_for_write_error::<Claim>(&self.context.writer, &claim.key, &error).await)
    }

    /// Returns a message if the node has too little capacity. Returns `None` if it has enough, and also if
    /// the driver does not report its capacity: the node is then selected, and a failure of CreateVolume is
    /// reported later.
    async fn capacity_shortage(
        &self,
        claim: &Claim,
        node: &NodeName,
        request: CreateVolume,
    ) -> Option<String> {
        let class = self.context.cache.class(claim.class_name()).into_object()?;
        let driver = self.context.drivers.get::<DriverName>(&class.provisioner)?;
        if !driver.backend.abilities().contains(&Ability::Capacity) {
            return None;
        }
        let topology = request.topology.and_then(|topology| topology.requisite.into_iter().next());
        let query =
            CapacityQuery { capabilities: request.capabilities, parameters: request.parameters, topology };
        let required = request.capacity.required.unwrap_or_default();
        let call = self.context.calls.call(&self.context.term, Secrets::default());
        match driver.backend.get_capacity(call, query).await {
            Ok(capacity) => {
                let maximum = capacity.maximum_volume_size.unwrap_or(u64::MAX).min(capacity.available);
                let text =
                    format!("node {node} has capacity for {maximum} bytes; the claim requests {required}");
                (maximum < required).then_some(text)
            }
            Err(error) => {
                tracing::info!(%node, claim = %claim.key, %error, "the driver does not report its capacity");
                None
            }
        }
    }
}
