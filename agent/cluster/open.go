package cluster

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
)

// Config says where the API server is, and as whom it is asked.
type Config struct {
	Kubeconfig  string
	ContentType string
	QPS, Burst  int // 0: the client's own
}

// Open reads how the API server is reached. It asks nothing yet.
func Open(c Config) (*Client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig: %w", err)
	}
	cfg.ContentType, cfg.QPS, cfg.Burst = c.ContentType, float32(c.QPS), c.Burst
	return NewClient(cfg)
}
