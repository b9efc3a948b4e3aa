package ledger

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// Encode is a CRI message as records keep it.
func Encode(m proto.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return b, nil
}

// Decode reads what Encode has made.
func Decode(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	return nil
}

// NewID returns an ID as CRI clients expect them: 64 hexadecimal digits.
func NewID() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
