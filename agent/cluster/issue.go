package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"time"
)

// issue is one certificate that is asked for and kept.
type issue struct {
	store  *store
	want   want
	client *Client
	now    func() time.Time
	waits  func(name string)
	prove  func(ctx context.Context, pair []byte, name string) error // nil: it is not
}

// run asks for the certificate and has it be the one in use. The pending key is left until the caller forgets it; one
// whose request came to nothing is not used again.
func (i *issue) run(ctx context.Context) (*tls.Certificate, error) {
	if pair, err := i.store.current(); err == nil && pair != nil {
		if key := i.store.found(); key != nil && sameKey(key, &pair.Certificate) {
			if err := i.store.forget(); err != nil { // a process was killed before it did
				return nil, err
			}
		}
	}
	key, err := i.store.pending()
	if err != nil {
		return nil, err
	}
	cert, name, err := i.want.ask(ctx, i.client, key, i.waits)
	if err == nil {
		if bad := i.want.check(cert, key, i.now()); bad != nil {
			err = &badCertificateError{wrapRequest(name, bad)}
		}
	}
	if err != nil {
		return nil, errors.Join(err, i.giveUp(err))
	}
	path, err := i.store.write(cert, key, i.now())
	if err != nil {
		return nil, fmt.Errorf("keep certificate: %w", err)
	}
	pair, err := joinPair(cert, key)
	if err == nil && i.prove != nil {
		err = i.prove(ctx, pair, name)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path), i.giveUp(err))
	}
	if err := i.store.use(path); err != nil {
		return nil, err
	}
	return parsePair(pair, pair)
}

// giveUp forgets the key of a request that will not have a good certificate any more.
func (i *issue) giveUp(err error) error {
	var bad *badCertificateError
	if errors.As(err, &bad) || errors.Is(err, errDenied) || errors.Is(err, errFailed) || errors.Is(err, errTaken) {
		return i.store.forget()
	}
	return nil
}
