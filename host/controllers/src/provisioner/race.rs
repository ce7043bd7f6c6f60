//! The race of nodes for a claim that nobody has chosen a node for: whose write to the claim the API takes makes the volume.

use cofferdam_backend::Call;
use cofferdam_cluster::{WriteError, queue::Outcome, writer::Part};
use cofferdam_domain::{
    Claim, DriverName, NodeName, names,
    storage::{Ability, CapacityQuery, CreateVolume},
};
use serde_json::json;

use super::reconcile::Provisioner;
use crate::{act::Teller, note::Note, observer::StepKind, role::Role};

impl Provisioner {
    /// Writes this process' node on the claim, when its turn has come and there is room. Without an outcome the claim is decided
    /// anew.
    ///
    /// The claim is the one of the decision, and not read again here: on a newer one somebody else's choice may stand already.
    pub(super) async fn take(
        &self,
        claim: &Claim,
        node: &NodeName,
        request: Option<CreateVolume>,
    ) -> Option<Outcome> {
        let Some(deployment) = &self.context.settings.node else { return Some(Outcome::Done) };
        let uid = &claim.meta.uid;
        let teller = Teller::of_claim(&self.context, Role::Provisioner, &claim.key);
        if let Some(left) = self.races().turn(deployment, uid) {
            return Some(Outcome::After(left));
        }
        if let Some(request) = request
            && let Some(text) = self.lacks_room(claim, node, request).await
        {
            teller.tell(StepKind::Waits, text.clone(), None);
            if self.races().tells(uid) {
                let component = self.component_for(claim);
                self.context.note(claim, &component, Note::warning("ProvisioningFailed", text));
            }
            return Some(Outcome::After(self.races().left(uid)));
        }
        let patch = json!({"metadata": {"annotations": {names::SELECTED_NODE: node}}});
        let write = self.context.writer.merge::<Claim>(&claim.key, Part::Object, claim.meta.version, patch);
        let error = teller.act(&format!("takes the claim for node {node}"), write).await.err()?;
        if matches!(error, WriteError::Conflict(_)) {
            self.races().again(uid);
        }
        Some(self.context.after_failure::<Claim>(&claim.key, &error).await)
    }

    /// Why the claim is left to other nodes. A driver that cannot tell, or does not, is given the claim: what it answers then is told.
    async fn lacks_room(&self, claim: &Claim, node: &NodeName, request: CreateVolume) -> Option<String> {
        let class = self.context.cache.class(claim.class_name()).known()?;
        let driver = self.context.drivers.get::<DriverName>(&class.provisioner)?;
        if !driver.backend.abilities().contains(&Ability::Capacity) {
            return None;
        }
        let topology = request.topology.and_then(|topology| topology.requisite.into_iter().next());
        let query =
            CapacityQuery { capabilities: request.capabilities, parameters: request.parameters, topology };
        let required = request.capacity.required.unwrap_or_default();
        match driver.backend.get_capacity(Call::within(self.context.settings.timeout), query).await {
            Ok(room) => {
                let most = room.maximum_volume.unwrap_or(u64::MAX).min(room.available);
                let text = format!("node {node} has room for {most} bytes, and {required} are asked for");
                (most < required).then_some(text)
            }
            Err(error) => {
                tracing::info!(%node, claim = %claim.key, %error, "the driver does not tell its capacity");
                None
            }
        }
    }
}
