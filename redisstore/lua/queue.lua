-- LeakyBucket: a bucket whose level must leak out before an event may leave.
K[2] = setmetatable({hold = function(p, at) return max(0, bucket.fresh(p) - at) end}, {__index = bucket})
