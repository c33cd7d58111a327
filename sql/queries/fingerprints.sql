-- The fingerprints of dead messages, in the order of what is given.
SELECT messages.fingerprint(result, text, jsonb_build_object('error', error))
  FROM unnest(%s::text[], %s::text[], %s::text[]) WITH ORDINALITY AS g (result, text, error, place)
 ORDER BY place
