//! The laboratory: its emulator, modem and point-to-point carrier, with real packets.

mod emulator;
mod modem;
mod ppp;
