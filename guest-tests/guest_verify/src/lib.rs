//! Verbs program for a test guest that checks every byte it moves.
