package podcert

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/issued"
)

type keptCredential struct {
	Key     []byte    `json:"key"`
	Chain   []byte    `json:"chain"`
	Refresh time.Time `json:"refresh"`
}

// keptName tells what is asked for in a place from what was asked for there before.
func keptName(at source, want *corev1.PodCertificateProjection) string {
	text, err := json.Marshal(want)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return fmt.Sprintf("certificate %s %d %s", at.volume, at.index, hex.EncodeToString(sum[:16]))
}

// keep keeps a certificate before anybody has it, where anything is kept.
func (m *Manager) keep(ctx context.Context, h *holder, c Credential, refresh time.Duration) {
	issued.Keep(ctx, m.cfg.Keep, h.pod.UID, h.name, keptCredential{c.Key, c.Chain, time.Now().Add(refresh)})
}

// adopt has a pod have the certificate that was kept, and says when another one is to be asked for. One that has ended
// does too, until there is another: the pod may not need it, and does not start without.
func (m *Manager) adopt(h *holder) time.Duration {
	var k keptCredential
	if !issued.Kept(m.cfg.Keep, h.pod.UID, h.name, &k) {
		return 0
	}
	block, _ := pem.Decode(k.Chain)
	if block == nil {
		return 0
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return 0
	}
	h.credential = &Credential{k.Key, k.Chain}
	if time.Now().Before(leaf.NotBefore) {
		return 0 // by a clock that is behind it is a long time until it is due
	}
	if time.Now().After(leaf.NotAfter) {
		m.cfg.Log.Warn("certificate of the pod has ended, which is given it again until its signer makes another one", "pod",
			h.pod.Namespace+"/"+h.pod.Name, "uid", string(h.pod.UID), "signer", h.want.SignerName, "ended", leaf.NotAfter)
	}
	return max(time.Until(k.Refresh), 0)
}

// Again has every certificate that could not be had be asked for now: the API server is back.
func (m *Manager) Again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, all := range m.pods {
		for _, h := range all {
			select {
			case h.again <- struct{}{}:
			default:
			}
		}
	}
}
