package admission

import corev1 "k8s.io/api/core/v1"

// Sum is what several pods have of the node together. The zero value is that of none.
type Sum struct {
	pods     int64
	requests corev1.ResourceList
}

// Add counts one more pod.
func (s *Sum) Add(of *Share) {
	if s.requests == nil {
		s.requests = corev1.ResourceList{}
	}
	s.pods++
	for name, more := range of.requests {
		q := s.requests[name]
		q.Add(more)
		s.requests[name] = q
	}
}

// Sub counts a pod no more that was counted.
func (s *Sum) Sub(of *Share) {
	s.pods--
	for name, less := range of.requests {
		q := s.requests[name]
		q.Sub(less)
		s.requests[name] = q
	}
}

// Clone is a copy that goes its own way.
func (s *Sum) Clone() *Sum { return &Sum{s.pods, s.requests.DeepCopy()} }

// Equal says whether two sums are of as many pods, and of as much.
func (s *Sum) Equal(o *Sum) bool {
	for _, of := range []corev1.ResourceList{s.requests, o.requests} {
		for name := range of {
			a, b := s.requests[name], o.requests[name]
			if a.Cmp(b) != 0 {
				return false
			}
		}
	}
	return s.pods == o.pods
}
