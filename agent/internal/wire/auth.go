package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// TokenLen is the length of the secret that both sides hold.
const TokenLen = 32

const (
	magic     = "NGSA"
	nonceLen  = 32
	helloLen  = len(magic) + 4 + 8 + nonceLen
	proofLen  = nonceLen + sha256.Size
	answerLen = sha256.Size
	// claimLen is the length of what claims an agent that has no token yet.
	claimLen = TokenLen
)

// handshakeTimeout bounds both sides' handshake; a peer that is slower is not ours.
const handshakeTimeout = 10 * time.Second

// ErrAuth means that the peer does not hold the token.
var ErrAuth = errors.New("the peer does not hold this sandbox's token")

// The agent speaks first, so the host's proof needs no extra round trip:
//
//	agent: magic, version, its clock, nonce A
//	host:  nonce H, HMAC(token, "host" A H)     (before it the token itself, once, for an agent started to be claimed)
//	agent: HMAC(token, "agent" A H)

// AcceptHandshake authenticates a host at the agent. claim, when not nil, is
// asked for an agent without token: it gets the first 32 bytes and tells whether they are taken as the token.
func AcceptHandshake(c net.Conn, token []byte, claim func([]byte) ([]byte, error)) error {
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	hello := make([]byte, helloLen)
	copy(hello, magic)
	binary.LittleEndian.PutUint32(hello[4:], Version)
	binary.LittleEndian.PutUint64(hello[8:], uint64(time.Now().UnixNano()))
	nonceA := hello[16:]
	if _, err := rand.Read(nonceA); err != nil {
		return err
	}
	if _, err := c.Write(hello); err != nil {
		return err
	}
	if claim != nil {
		given := make([]byte, claimLen)
		if _, err := io.ReadFull(c, given); err != nil {
			return err
		}
		var err error
		if token, err = claim(given); err != nil {
			return err
		}
	}
	proof := make([]byte, proofLen)
	if _, err := io.ReadFull(c, proof); err != nil {
		return err
	}
	nonceH := proof[:nonceLen]
	if !hmac.Equal(proof[nonceLen:], mac(token, "host", nonceA, nonceH)) {
		return ErrAuth
	}
	if _, err := c.Write(mac(token, "agent", nonceA, nonceH)); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// OpenHandshake authenticates the agent at the host and gives the agent's
// clock's lead over this one. claim sends the token first.
func OpenHandshake(c net.Conn, token []byte, claim bool, deadline time.Time) (skew time.Duration, err error) {
	if limit := time.Now().Add(handshakeTimeout); deadline.IsZero() || deadline.After(limit) {
		deadline = limit
	}
	if err := c.SetDeadline(deadline); err != nil {
		return 0, err
	}
	hello := make([]byte, helloLen)
	if _, err := io.ReadFull(c, hello); err != nil {
		return 0, fmt.Errorf("no greeting: %w", err)
	}
	if string(hello[:4]) != magic {
		return 0, errors.New("what answers is not the agent")
	}
	if v := binary.LittleEndian.Uint32(hello[4:]); v != Version {
		return 0, fmt.Errorf("the agent speaks version %d, this library version %d", v, Version)
	}
	skew = time.Until(time.Unix(0, int64(binary.LittleEndian.Uint64(hello[8:]))))
	nonceA := hello[16:]
	msg := make([]byte, 0, claimLen+proofLen)
	if claim {
		msg = append(msg, token...)
	}
	nonceH := make([]byte, nonceLen)
	if _, err := rand.Read(nonceH); err != nil {
		return 0, err
	}
	msg = append(append(msg, nonceH...), mac(token, "host", nonceA, nonceH)...)
	if _, err := c.Write(msg); err != nil {
		return 0, err
	}
	answer := make([]byte, answerLen)
	if _, err := io.ReadFull(c, answer); err != nil {
		return 0, fmt.Errorf("%w (or it closed: %w)", ErrAuth, err)
	}
	if !hmac.Equal(answer, mac(token, "agent", nonceA, nonceH)) {
		return 0, ErrAuth
	}
	return skew, c.SetDeadline(time.Time{})
}

func mac(token []byte, side string, nonceA, nonceH []byte) []byte {
	h := hmac.New(sha256.New, token)
	h.Write([]byte(side))
	h.Write(nonceA)
	h.Write(nonceH)
	return h.Sum(nil)
}
