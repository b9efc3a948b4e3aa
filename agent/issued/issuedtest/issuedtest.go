// Package issuedtest has what tests of those give that ask for what pods are issued.
package issuedtest

import (
	"bytes"
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Store keeps in memory. The zero value is empty.
type Store struct{ has sync.Map }

// Hand implements issued.Store.
func (k *Store) Hand(_ context.Context, uid types.UID, name string, data []byte) {
	k.has.Store(string(uid)+" "+name, data)
}

// Handed implements issued.Store.
func (k *Store) Handed(uid types.UID, name string) ([]byte, bool) {
	data, ok := k.has.Load(string(uid) + " " + name)
	if !ok {
		return nil, false
	}
	return data.([]byte), true
}

// Log is a log that is read while it is written. The zero value is empty.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
