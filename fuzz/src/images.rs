//! Images of functions that nobody has saved.

use arbitrary::Arbitrary;
use serde_json::{Value, json};

use crate::Machine;
use crate::machine::guest::{PAYLOAD, Qp};

/// A change to one place of an image.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Change {
    at: u16,
    how: u8,
    value: u64,
}

/// Number of values in a value, itself among them.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(count).sum::<usize>(),
        Value::Object(values) => values.values().map(count).sum(),
        _ => 0,
    }
}

/// The value that stands at this place.
fn nth(value: &mut Value, at: usize) -> &mut Value {
    if at == 0 {
        return value;
    }
    let mut left = at - 1;
    let within: Vec<&mut Value> = match value {
        Value::Array(values) => values.iter_mut().collect(),
        Value::Object(values) => values.values_mut().collect(),
        _ => Vec::new(),
    };
    for value in within {
        let here = count(value);
        if left < here {
            return nth(value, left);
        }
        left -= here;
    }
    unreachable!("there are as many values")
}

impl Change {
    /// Makes the change.
    pub fn apply(&self, image: &mut Value) {
        let places = count(image);
        let value = nth(image, usize::from(self.at) % places);
        match (self.how % 6, &mut *value) {
            (0..2, Value::Array(values)) if !values.is_empty() => {
                let at = self.value as usize % values.len();
                if self.how.is_multiple_of(6) {
                    values.remove(at);
                } else {
                    values.push(values[at].clone());
                }
            }
            (0..3, Value::Number(number)) => {
                let delta = (self.value as i64).clamp(-2, 2);
                *value = json!(number.as_u64().unwrap_or(0).wrapping_add_signed(delta));
            }
            (3, _) => *value = json!(self.value),
            (4, _) => *value = json!(self.value % 64),
            (5, _) if self.value.is_multiple_of(4) => *value = Value::Null,
            (_, Value::Bool(bit)) => *bit = !*bit,
            _ => {}
        }
    }
}

/// A function in the middle of work, which images are made of.
#[derive(Debug)]
pub struct Worker {
    image: Value,
    qp: Qp,
}

impl Worker {
    /// Function 0, connected with itself, with requests posted that wait.
    pub fn new(machine: &mut Machine) -> Self {
        machine.bring_up(0);
        let objects = machine.objects(0);
        let mut qp = machine.queue_pair(0, &objects, 0, 0, false);
        let peer = machine.queue_pair(0, &objects, 1, 0, true);
        machine.connect(0, &qp, 1, peer.number);
        machine.connect(0, &peer, 1, qp.number);
        // A SEND, for which there is no receive request.
        let segment = [
            &8_u32.to_be_bytes()[..],
            &objects.physical.to_be_bytes(),
            &PAYLOAD.to_be_bytes(),
        ]
        .concat();
        let at = qp.send_queue();
        for (index, dword) in [0x0a, qp.number << 8 | 2, 8, 0].into_iter().enumerate() {
            let bytes = u32::to_be_bytes(dword);
            machine.guest(0).write(at + index as u64 * 4, &bytes);
        }
        machine.guest(0).write(at + 16, &segment);
        machine.ring(0, &mut qp, 1);
        Self {
            image: machine.save(0),
            qp,
        }
    }

    /// Restores function 0 from a changed image, and has it work on. Whether it could be restored.
    pub fn change(&mut self, machine: &mut Machine, changes: &[Change]) -> bool {
        let mut image = self.image.clone();
        changes.iter().for_each(|change| change.apply(&mut image));
        let restored = machine.restore(0, image).is_ok();
        machine.ring(0, &mut self.qp.clone(), 1);
        for _ in 0..4 {
            machine.pass(100_000_000);
        }
        // What was restored can be saved, and restored again.
        if restored {
            let again = machine.save(0);
            machine.restore(0, again).expect("an image that was saved");
            machine.pass(1_000_000);
        }
        machine.reset(0);
        restored
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::guest::Bystander;
    use testing::Random;

    /// One to three changes at random each time, the same every time.
    pub(crate) fn random_changes() -> impl FnMut() -> Vec<Change> {
        let mut random = Random::new(1);
        let mut round = 0;
        move || {
            round += 1;
            let change = |_| Change {
                at: random.number() as u16,
                how: random.number() as u8,
                value: random.number() >> random.below(64),
            };
            (0..1 + round % 3).map(change).collect()
        }
    }

    #[test]
    fn random_images_disturb_nobody() {
        let mut machine = Machine::new(2);
        let mut bystander = Bystander::new(&mut machine, 1);
        let mut worker = Worker::new(&mut machine);
        let mut changes = random_changes();
        let mut restored = 0;
        for round in 0..1000 {
            restored += u32::from(worker.change(&mut machine, &changes()));
            if round % 100 == 0 {
                bystander.transfer(&mut machine);
            }
        }
        assert!((100..900).contains(&restored), "{restored} were images");
    }
}
