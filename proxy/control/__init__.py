"""What trainers speak: rollouts, groups, outcomes, profiles and reads; never a prompt to an engine."""
