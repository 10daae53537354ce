package core

// Release lets go of the sandbox without ending it, for an owner that was dropped without a stop: what holds it in this
// process is freed, and its TTL and its backend's rule for orphans decide its end. Idempotent; a stop under way goes on.
func (s *Sandbox) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stateRunning {
		s.inst.Detach()
		s.state = stateDetached
		if s.borrowed {
			s.ledger.handedOver(s.provider, s.inst.ID(), false)
		}
	}
}
