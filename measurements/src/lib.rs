//! Programs that each ask one question of the machine.
