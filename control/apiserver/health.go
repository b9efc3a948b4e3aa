package apiserver

import (
	"context"
	"fmt"
	"time"
)

// askTimeout bounds a question of the server to itself.
const askTimeout = 10 * time.Second

// Ready asks the server, as a client of its own, whether it is ready.
func (s *Server) Ready(ctx context.Context) error { return s.ask(ctx, "/readyz", "") }

// Live asks the server whether it lives. It does where etcd waits for other members, which no new start helps.
func (s *Server) Live(ctx context.Context) error { return s.ask(ctx, "/livez", "etcd") }

func (s *Server) ask(ctx context.Context, path, without string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r := s.shared.client.Discovery().RESTClient().Get().AbsPath(path)
	if without != "" {
		r = r.Param("exclude", without)
	}
	if err := r.Do(ctx).Error(); err != nil {
		return fmt.Errorf("ask server for %s: %w", path, err)
	}
	return nil
}
