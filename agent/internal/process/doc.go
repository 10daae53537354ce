// Package process starts, finds and ends processes for what serves a sandbox:
// whom they run as, what program a name stands for, what belongs to a command, and who collects it at its end.
package process
