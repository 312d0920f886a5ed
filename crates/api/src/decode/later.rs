//! What the findings for fields that do not work yet say beyond that: what happens without the field, and the way out.

use evenkeel_base::yaml::{Entry, Scalar, ScalarType, Value};

/// The consequence of leaving a field out, which ends the message, and the help.
pub(super) struct Consequence {
    pub message: &'static str,
    pub help: &'static str,
}

const USUAL: Consequence = Consequence { message: "", help: "the rest of this document applies" };

/// By name, which is the same wherever the field occurs.
const CONSEQUENCES: [(&str, Consequence); 1] = [(
    ZONE_AWARE,
    Consequence {
        message: ", with its `failover` and `failoverPriority`: if nothing else is set, requests go to all zones and regions alike",
        help: "to prefer near endpoints, set `outlierDetection`: requests then go to the nearest zone that has enough \
           healthy endpoints; `localityLbSetting` changes the order",
    },
)];

const ZONE_AWARE: &str = "zoneAwareLbSetting";

/// The consequence of leaving out a field.
pub(super) fn consequence(name: &str) -> &'static Consequence {
    CONSEQUENCES.iter().find(|(known, _)| *known == name).map_or(&USUAL, |(_, consequence)| consequence)
}

/// Whether a field only switches itself off, so that nothing is lost without it.
pub(super) fn is_switched_off(entry: &Entry) -> bool {
    let enabled = entry.value.get("enabled").map(|node| &node.value);
    let is_off = matches!(enabled, Some(Value::Scalar(Scalar { ty: ScalarType::Bool(false), .. })));
    is_off && &*entry.key == ZONE_AWARE
}
